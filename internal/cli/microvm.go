package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/self"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
	"tare/internal/sandboxes/microvm"
)

func init() { register(newMicrovm) }

// microvmFlags holds the flags of tare microvm itself, which stand before the subcommand. Most of them are runc's.
type microvmFlags struct {
	root, log, logFormat string
	systemdCgroup        bool
	options              map[string]*string
}

// unused is the help of flags that are accepted and ignored.
const unused = "ignored: accepted for compatibility with runc"

func newMicrovm() *cobra.Command {
	f := &microvmFlags{options: map[string]*string{}}
	cmd := &cobra.Command{
		Use:   "microvm",
		Short: "An OCI runtime that runs each container in a small virtual machine, in the manner of Kata",
		Long: `An OCI runtime with runc's command line: wherever runc is run, 'tare microvm' can be. It runs each
container in a virtual machine of its own, as Kata does: QEMU with Debian's cloud kernel, the container's root by
virtio-fs, and a shim that looks after it. See docs/microvm.md.`,
		Example: `  tare microvm run --bundle ./bundle demo
  tare microvm create --bundle ./bundle demo && tare microvm start demo
  tare microvm features`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fault.New(fault.Usage, "tare microvm "+args[0], "runc's checkpoint, events, exec, pause, ps, restore, "+
				"resume, spec and update are not supported; see 'tare microvm --help'", "no such command")
		},
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version: self.Version,
	}
	// The format is runc's, which container engines parse.
	cmd.SetVersionTemplate("tare microvm version {{.Version}}\nspec: " + specs.Version + "\n")
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.root, "root", microvm.DefaultRoot,
		"`name` of a set of containers (runc takes a directory); ids must be unique over all sets")
	flags.StringVar(&f.log, "log", "", "`file` to which errors are added")
	flags.StringVar(&f.logFormat, "log-format", "text", "text or json")
	flags.Bool("debug", false, unused)
	flags.String("criu", "", unused)
	flags.String("rootless", "auto", unused)
	flags.BoolVar(&f.systemdCgroup, "systemd-cgroup", false, "refused: control groups are made without systemd")
	for _, o := range microvm.OptionList() {
		f.options[o.Name] = flags.String(strings.ReplaceAll(o.Name, "_", "-"), "", o.Doc)
	}
	cmd.AddCommand(f.newCreate(), f.newRun(), f.newStart(), f.newState(), f.newKill(), f.newDelete(), f.newList(),
		f.newFeatures())
	cmd.AddCommand(&cobra.Command{
		Use: microvm.ShimCommand, Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			code, err := microvm.Shim(args)
			if err != nil || code == 0 {
				return err
			}
			return exitStatus(code)
		},
	})
	return cmd
}

// command returns a subcommand of tare microvm that also writes its errors to the log.
func (f *microvmFlags) command(
	use, example, short string, takes cobra.PositionalArgs, run func(*cobra.Command, []string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: use, Example: "  tare microvm " + example, Short: short, Args: takes,
		RunE: func(cmd *cobra.Command, args []string) error { return f.logged(run(cmd, args)) },
	}
}

// logged appends an error to the file of --log, in runc's format, because containerd reads there why a command failed.
// It returns the error, together with that of writing the log if there is one.
func (f *microvmFlags) logged(err error) error {
	var status exitStatus
	if err == nil || f.log == "" || errors.As(err, &status) {
		return err
	}
	file, e := os.OpenFile(f.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if e != nil {
		return errors.Join(err, fault.Wrap(e, fault.Usage, "--log", "", "cannot write the log"))
	}
	now := time.Now().Format(time.RFC3339)
	if f.logFormat == "json" {
		e = json.NewEncoder(file).Encode(map[string]string{"level": "error", "msg": err.Error(), "time": now})
	} else {
		_, e = fmt.Fprintf(file, "time=%q level=error msg=%q\n", now, err.Error())
	}
	return errors.Join(err, e, file.Close())
}

func (f *microvmFlags) runtime() (*microvm.Runtime, error) {
	if f.systemdCgroup {
		return nil, fault.New(fault.Usage, "--systemd-cgroup", "leave it out",
			"systemd's driver for control groups is not supported")
	}
	return microvm.New(f.root)
}

// with returns a function that opens the runtime named by the flags and passes it to body.
func (f *microvmFlags) with(
	body func(r *microvm.Runtime, cmd *cobra.Command, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		r, err := f.runtime()
		if err != nil {
			return err
		}
		return body(r, cmd, args)
	}
}

// withContainer is with for commands whose first argument is the id of a container. If runc runs the container, runc
// executes the command.
func (f *microvmFlags) withContainer(
	body func(r *microvm.Runtime, cmd *cobra.Command, args []string) error,
) func(*cobra.Command, []string) error {
	return f.with(func(r *microvm.Runtime, cmd *cobra.Command, args []string) error {
		if r.ByRunc(args[0]) {
			return f.byRunc(r, cmd, args...)
		}
		return body(r, cmd, args)
	})
}

// byRunc has runc execute a command. Runc also writes its errors to the log.
func (f *microvmFlags) byRunc(r *microvm.Runtime, cmd *cobra.Command, args ...string) error {
	all := []string{"--log-format=" + f.logFormat}
	if f.log != "" {
		all = append(all, "--log="+f.log)
	}
	all = append(all, cmd.Name())
	inherited := cmd.InheritedFlags()
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if inherited.Lookup(flag.Name) == nil {
			all = append(all, "--"+flag.Name+"="+flag.Value.String())
		}
	})
	return r.Runc(append(all, args...)...)
}

func (f *microvmFlags) readOptions(cmd *cobra.Command) (microvm.Options, error) {
	set := map[string]string{}
	for name, v := range f.options {
		if cmd.Flags().Changed(strings.ReplaceAll(name, "_", "-")) {
			set[name] = *v
		}
	}
	return microvm.NewOptions(set)
}

// oneID checks that the only argument is the id of a container.
func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fault.New(fault.Usage, cmd.CommandPath(), usage.SeeHelp(cmd), "give the id of one container")
	}
	return nil
}

// creationFlags are the flags of create and run.
type creationFlags struct {
	bundle, pidFile, consoleSocket string
	preserveFDs                    int
}

func (c *creationFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&c.bundle, "bundle", "b", ".", "`directory` with config.json")
	flags.StringVar(&c.pidFile, "pid-file", "", "`file` that gets the pid of the virtual machine")
	flags.StringVar(&c.consoleSocket, "console-socket", "", "refused: a container has no terminal here")
	flags.IntVar(&c.preserveFDs, "preserve-fds", 0, "refused unless 0: descriptors cannot be handed to a virtual machine")
	flags.Bool("no-pivot", false, unused)
	flags.Bool("no-new-keyring", false, unused)
}

// create creates the container id. The container gets the standard streams of this process.
func (f *microvmFlags) create(cmd *cobra.Command, c *creationFlags, id string) (*microvm.Runtime, error) {
	if c.consoleSocket != "" {
		return nil, fault.New(fault.Usage, "--console-socket", "set process.terminal to false",
			"a container has no terminal here")
	}
	if c.preserveFDs != 0 {
		return nil, fault.New(fault.Usage, "--preserve-fds", "leave it out",
			"descriptors cannot be handed to a virtual machine")
	}
	r, err := f.runtime()
	if err != nil {
		return nil, err
	}
	if microvm.HoldsPod(c.bundle) {
		return nil, f.byRunc(r, cmd, id)
	}
	o, err := f.readOptions(cmd)
	if err != nil {
		return nil, err
	}
	return r, r.Create(cmd.Context(), microvm.Creation{
		ID: id, Bundle: c.bundle, PIDFile: c.pidFile, Options: o,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
}

func (f *microvmFlags) newCreate() *cobra.Command {
	c := &creationFlags{}
	cmd := f.command("create ID", "create --bundle ./bundle demo", "Create a container: the virtual machine boots", oneID,
		func(cmd *cobra.Command, args []string) error {
			_, err := f.create(cmd, c, args[0])
			return err
		})
	c.add(cmd)
	return cmd
}

func (f *microvmFlags) newRun() *cobra.Command {
	c := &creationFlags{}
	var detach, keep bool
	cmd := f.command("run ID", "run --bundle ./bundle demo",
		"Create a container, start it, wait for its end and delete it; exits as its program did", oneID,
		func(cmd *cobra.Command, args []string) error { return f.run(cmd, c, args[0], detach, keep) })
	c.add(cmd)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for its end")
	cmd.Flags().BoolVar(&keep, "keep", false, "do not delete it at its end")
	cmd.Flags().Bool("no-subreaper", false, unused)
	return cmd
}

func (f *microvmFlags) run(cmd *cobra.Command, c *creationFlags, id string, detach, keep bool) (err error) {
	r, err := f.create(cmd, c, id)
	if err != nil {
		return err
	}
	if err := r.Start(id); err != nil {
		return errors.Join(err, r.Delete(id, true))
	}
	if detach {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go forwardSignals(ctx, r, id)
	code, err := r.Wait(id)
	if !keep {
		err = errors.Join(err, r.Delete(id, true))
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return exitStatus(code)
	}
	return nil
}

// forwardSignals forwards the signals that this process gets to the container.
func forwardSignals(ctx context.Context, r *microvm.Runtime, id string) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(signals)
	for {
		select {
		case s := <-signals:
			if n, ok := s.(unix.Signal); ok {
				_ = r.Kill(id, n, false) // the container may have ended
			}
		case <-ctx.Done():
			return
		}
	}
}

func (f *microvmFlags) newStart() *cobra.Command {
	return f.command("start ID", "start demo", "Start the program of a created container", oneID,
		f.withContainer(func(r *microvm.Runtime, _ *cobra.Command, args []string) error { return r.Start(args[0]) }))
}

func (f *microvmFlags) newState() *cobra.Command {
	return f.command("state ID", "state demo",
		"Print the state of a container, as the OCI runtime specification has it", oneID,
		f.withContainer(func(r *microvm.Runtime, cmd *cobra.Command, args []string) error {
			state, err := r.State(args[0])
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), "  ", state)
		}))
}

func (f *microvmFlags) newKill() *cobra.Command {
	var all bool
	takes := func(cmd *cobra.Command, args []string) error {
		if len(args) < 1 || len(args) > 2 {
			return fault.New(fault.Usage, cmd.CommandPath(), usage.SeeHelp(cmd),
				"give the id of a container, and a signal if you like")
		}
		return nil
	}
	cmd := f.command("kill ID [SIGNAL]", "kill demo KILL", "Send a container's first process a signal (SIGTERM)", takes,
		f.withContainer(func(r *microvm.Runtime, _ *cobra.Command, args []string) error {
			name := "SIGTERM"
			if len(args) == 2 {
				name = args[1]
			}
			s, err := microvm.ParseSignal(name)
			if err != nil {
				return err
			}
			return r.Kill(args[0], s, all)
		}))
	cmd.Flags().BoolVarP(&all, "all", "a", false, "send it to all processes in the container")
	return cmd
}

func (f *microvmFlags) newDelete() *cobra.Command {
	var force bool
	cmd := f.command("delete ID", "delete --force demo", "Delete a container that has stopped", oneID,
		f.withContainer(func(r *microvm.Runtime, _ *cobra.Command, args []string) error { return r.Delete(args[0], force) }))
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also delete a running container; a missing one is not an error")
	return cmd
}

func (f *microvmFlags) newList() *cobra.Command {
	var format string
	var quiet bool
	cmd := f.command("list", "list --format json", "List the containers", usage.NoArgs,
		f.with(func(r *microvm.Runtime, cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "json"}, format) {
				return fault.New(fault.Usage, "--format", "use table or json", "no format is called %q", format)
			}
			list, err := r.List()
			if err != nil {
				return err
			}
			return printContainers(cmd.OutOrStdout(), list, format == "json", quiet)
		}))
	cmd.Flags().StringVarP(&format, "format", "f", "table", "table or json")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return cmd
}

// printContainers prints the list of containers as runc does: only ids, or JSON, or a table.
func printContainers(w io.Writer, list []microvm.Container, asJSON, quiet bool) error {
	switch {
	case quiet:
		for _, c := range list {
			fmt.Fprintln(w, c.ID)
		}
		return nil
	case asJSON:
		return json.NewEncoder(w).Encode(slices.Concat([]microvm.Container{}, list))
	}
	table := tabwriter.NewWriter(w, 12, 1, 3, ' ', 0)
	fmt.Fprintln(table, "ID\tPID\tSTATUS\tBUNDLE\tCREATED")
	for _, c := range list {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", c.ID, c.Pid, c.Status, text.Line(c.Bundle),
			c.Created.Format(time.RFC3339Nano))
	}
	return table.Flush()
}

func (f *microvmFlags) newFeatures() *cobra.Command {
	return f.command("features", "features",
		"Print what this runtime can do, and what sandboxes are made of on this machine", usage.NoArgs,
		f.with(func(r *microvm.Runtime, cmd *cobra.Command, _ []string) error {
			o, err := f.readOptions(cmd)
			if err != nil {
				return err
			}
			features, err := r.Features(cmd.Context(), o)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), "  ", features)
		}))
}
