package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/mesh/kernelmesh"
)

func init() { register(newSubject) }

func newSubject() *cobra.Command {
	c := &cobra.Command{
		Use:   "subject",
		Short: "Run a subject, a thing that Tare weighs; without a name, list them",
		Example: `  tare subject
  tare subject kernelmesh --services services.yaml --cgroup /sys/fs/cgroup/mygroup`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, sub := range cmd.Commands() {
				names = append(names, sub.Name())
			}
			return fault.New(fault.Usage, "", text.Suggest(args[0], names), "there is no subject %q", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listSubjects(cmd.Context(), cmd.OutOrStdout())
		},
	}
	c.AddCommand(newKernelmesh(), newProxy(), newStoreSubject(), newExectrace())
	return c
}

// listSubjects lists what an arm of a spec can weigh.
func listSubjects(ctx context.Context, w io.Writer) error {
	for _, g := range kind.All(kind.Subject) {
		if _, varies := g.(kind.Variant); varies {
			continue // it is the baseline, and nothing that is weighed
		}
		about := g.About()
		state := ""
		if i, ok := g.(kind.Installed); ok {
			if missing := i.Installed(ctx, param.Defaults(about.Settings)); missing != nil {
				state = " (" + missing.Error() + ")"
			}
		}
		fmt.Fprintf(w, "%s: %s%s\n", about.Name, about.Summary, state)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, o := range about.Settings {
			doc := o.Doc
			if o.Default != "" {
				doc += " (default " + o.Default + ")"
			}
			fmt.Fprintf(t, "  %s\t%s\n", o.Name, doc)
		}
		if err := t.Flush(); err != nil {
			return fmt.Errorf("writing the list of subjects: %w", err)
		}
	}
	return nil
}

func newKernelmesh() *cobra.Command {
	var only kernelmesh.Options // those that the command line alone has
	var human bool
	var source string
	var values param.Values
	c := &cobra.Command{
		Use: "kernelmesh (--services FILE | --xds ADDRESS) --cgroup PATH",
		Short: "Run an eBPF service mesh data plane on the sockets of one control group, until interrupted; " +
			"SIGHUP rereads the services",
		Example: `  tare subject kernelmesh --services services.yaml --cgroup /sys/fs/cgroup/mygroup
  tare subject kernelmesh --xds 127.0.0.1:18000 --fail closed --cgroup /sys/fs/cgroup/mygroup`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case only.CgroupDir == "":
				return fault.New(fault.Usage, "--cgroup", seeHelp(cmd), "missing value")
			case (only.ServicesFile == "") == (only.XDS == ""):
				return fault.New(fault.Usage, "--services", "give --services or --xds; "+seeHelp(cmd),
					"one place is needed from which the services come")
			}
			o, err := kernelmesh.OptionsOf(values)
			if err != nil {
				return wrongUse(cmd, err)
			}
			o.CgroupDir, o.ServicesFile, o.XDS, o.AllowRoot = only.CgroupDir, only.ServicesFile, only.XDS, only.AllowRoot
			if o.Sources, err = sources(source); err != nil {
				return err
			}
			// The command's own context ends on SIGHUP, which here means: read the services again.
			ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), os.Interrupt, unix.SIGTERM)
			defer stop()
			human = human || isatty.IsTerminal(os.Stdout.Fd())
			conn := role.NewConn(os.Stdin, os.Stdout)
			if o.XDS == "" {
				services, err := openFile(o.ServicesFile, "the services file")
				switch {
				case err != nil && human:
					return err
				case err != nil:
					return reported(conn, err)
				}
				services.Close() // the data plane reads it itself, and again on every signal
			}
			if human {
				return forPeople(ctx, cmd.OutOrStdout(), printKernelmesh, func(ctx context.Context, conn *role.Conn) error {
					return kernelmesh.Run(ctx, o, conn)
				})
			}
			return reported(conn, kernelmesh.Run(ctx, o, conn))
		},
	}
	f := c.Flags()
	values = param.Flags(f, kernelmesh.Settings...)
	f.StringVar(&only.ServicesFile, "services", "", "YAML file of services and their endpoints")
	f.StringVar(&only.XDS, "xds", "", "control plane that says what the services are: HOST:PORT or unix:PATH")
	f.StringVar(&only.CgroupDir, "cgroup", "", "cgroup v2 directory whose processes are served")
	f.StringVar(&source, "source", "auto", "addresses that rules take as the source of sockets bound to none: "+
		"auto (of the default routes), none, or IP[,IP]")
	f.BoolVar(&only.AllowRoot, "allow-root", false,
		"let the control group be the root: serve every process of the machine")
	f.BoolVar(&human, "human", false, "print for people, not the role protocol; the default on a terminal")
	return c
}

// sources are the addresses that the flag --source names.
func sources(text string) (all []netip.Addr, err error) {
	switch text {
	case "auto":
		return kernelmesh.Outward(), nil
	case "none":
		return nil, nil
	}
	for _, part := range strings.Split(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fault.New(fault.Usage, "--source",
				"give auto, none, or an IPv4 address, an IPv6 address or both, with a comma between",
				"%q is not an address", part)
		}
		all = append(all, a)
	}
	return all, nil
}

func printKernelmesh(w io.Writer, m role.Message) error {
	switch m.Event {
	case role.Ready:
		var r kernelmesh.Ready
		if err := decodeMessage(m, &r); err != nil {
			return err
		}
		if r.XDS != "" {
			fmt.Fprintf(w, "kernelmesh serves what %s says in %s, from store %s\n", r.XDS, r.Cgroup, r.Store)
		} else {
			fmt.Fprintf(w, "kernelmesh serves %s, %s of %s in %s, from store %s\n", quantity.Counted(r.Services, "service"),
				quantity.Counted(r.Endpoints, "endpoint"), r.ServicesFile, r.Cgroup, r.Store)
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "program\tid\tattached\tlink")
		for i, p := range r.Programs {
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\n", p.Name, p.ID, r.Links[i].Attach, r.Links[i].ID)
		}
		fmt.Fprintln(t, "map\tid\ttype\tmax entries")
		for _, p := range r.Maps {
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\n", p.Name, p.ID, p.Type, p.MaxEntries)
		}
		return t.Flush()
	case role.Log:
		return printLog(w, m)
	}
	return nil
}

func decodeMessage(m role.Message, into any) error {
	if err := json.Unmarshal(m.Data, into); err != nil {
		return fmt.Errorf("decoding %s message: %w", m.Event, err)
	}
	return nil
}
