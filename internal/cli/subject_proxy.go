package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/mesh/controlplane/injection/probes"
	"tare/internal/mesh/proxy"
)

func newProxy() *cobra.Command {
	var only proxy.Options // those that the command line alone has
	var human bool
	var values param.Values
	c := &cobra.Command{
		Use:   "proxy (--config FILE | --xds ADDRESS)",
		Short: "Run a small sidecar proxy for HTTP and TCP with mTLS, routes and access rules, until interrupted",
		Example: `  tare subject proxy --config proxy.yaml
  tare subject proxy --xds 127.0.0.1:18000 --node web-1
  tare subject proxy --xds 127.0.0.1:18000 --node web-1 --credentials /run/mesh/web-1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (only.Config == "") == (only.XDS == "") {
				return fault.New(fault.Usage, "--config", "give --config or --xds; "+seeHelp(cmd),
					"one place is needed from which the configuration comes")
			}
			o, err := proxy.OptionsOf(values)
			if err != nil {
				return wrongUse(cmd, err)
			}
			o.Config, o.XDS, o.Node, o.Drain = only.Config, only.XDS, only.Node, only.Drain
			o.Stats, o.UID, o.GID, o.Credentials = only.Stats, only.UID, only.GID, only.Credentials
			if o.Credentials != "" && o.XDS == "" {
				return wrongUse(cmd, fault.New(fault.Usage, "--credentials", "give --xds as well",
					"only a control plane asks for them"))
			}
			o.Identity, o.TokenFile, o.Probes, o.ProbeHost = only.Identity, only.TokenFile, only.Probes, only.ProbeHost
			if err := proxyOfPod(cmd, &o); err != nil {
				return err
			}
			if human || isatty.IsTerminal(os.Stdout.Fd()) {
				return forPeople(cmd.Context(), cmd.OutOrStdout(), printProxy, func(ctx context.Context, conn *role.Conn) error {
					return proxy.Run(ctx, o, conn)
				})
			}
			conn := role.NewConn(os.Stdin, os.Stdout)
			return reported(conn, proxy.Run(cmd.Context(), o, conn))
		},
	}
	f := c.Flags()
	values = param.Flags(f, proxy.Settings...)
	f.StringVar(&only.Config, "config", "", "YAML or JSON file of resources in Envoy's form")
	f.StringVar(&only.XDS, "xds", "", "control plane that says what to do: HOST:PORT or unix:PATH")
	f.StringVar(&only.Node, "node", "", "id by which the control plane knows the proxy (default tare)")
	f.StringVar(&only.Credentials, "credentials", "",
		"directory of what proves the proxy's identity to the control plane, as 'tare controlplane --credentials' writes it")
	f.StringVar(&only.Identity, "identity", "", "SPIFFE ID of which to get a certificate by --token-file, from the control "+
		"plane whose roots are in $TARE_ROOTS: as the proxy of a pod does")
	f.StringVar(&only.TokenFile, "token-file", "", "token of the pod's service account, which is read again each time")
	f.StringVar(&only.Probes, "probes", "", "address at which to answer the probes of other containers, which $TARE_PROBES has")
	f.StringVar(&only.ProbeHost, "probe-host", "127.0.0.1", "where these containers are asked: the pod's IP, or loopback")
	f.DurationVar(&only.Drain, "drain", 2*time.Second, "how long requests under way have when the proxy is to end")
	f.StringVar(
		&only.Stats,
		"stats",
		"",
		"path of a socket at which whoever connects is told what the proxy has done, as JSON",
	)
	f.IntVar(&only.UID, "uid", 0, "user to run as once files are read and listeners listen; 0 for nobody else")
	f.IntVar(&only.GID, "gid", 0, "its group")
	f.BoolVar(&human, "human", false, "print for people, not the role protocol; the default on a terminal")
	return c
}

// The environment of the proxy of a pod (package injection).
const (
	rootsVariable  = "TARE_ROOTS"
	probesVariable = "TARE_PROBES"
)

// proxyOfPod reads what the proxy of a pod has in its environment.
func proxyOfPod(cmd *cobra.Command, o *proxy.Options) (err error) {
	if (o.Identity != "") != (o.TokenFile != "") || o.Identity != "" && (o.XDS == "" || o.Credentials != "") {
		return wrongUse(cmd, fault.New(fault.Usage, "--identity", "give --xds, --identity and --token-file, and no --credentials",
			"a token is shown to a control plane, by who has no certificate yet"))
	}
	if o.Identity != "" {
		if o.Roots = []byte(os.Getenv(rootsVariable)); len(o.Roots) == 0 {
			return fault.New(fault.Usage, "$"+rootsVariable, "set it to the roots of the mesh's certificates, as PEM",
				"the control plane could be anybody")
		}
	}
	if o.Probes != "" {
		if o.Table, err = probes.Parse([]byte(os.Getenv(probesVariable))); err != nil {
			return fault.Wrap(err, fault.Usage, "$"+probesVariable, "see docs/injection.md", "there are no probes to answer")
		}
	}
	return nil
}

func printProxy(w io.Writer, m role.Message) (err error) {
	switch m.Event {
	case role.Ready:
		var r proxy.Ready
		if err = decodeMessage(m, &r); err != nil {
			return err
		}
		from := r.Config
		if r.XDS != "" {
			from = r.XDS
		}
		_, err = fmt.Fprintf(
			w,
			"the proxy does what %s says, on %d of the machine's CPUs at a time\n",
			from,
			r.Workers,
		)
		for _, l := range r.Listeners {
			fmt.Fprintf(w, "  %s at %s\n", text.Line(l.Name), l.Address)
		}
	case role.Log:
		err = printLog(w, m)
	}
	return err
}
