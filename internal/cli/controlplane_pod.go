package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
	"tare/internal/mesh/controlplane/injection/probes"
	"tare/internal/mesh/controlplane/pod"
)

// Environment variables of an injected pod's proxy (package injection).
const (
	rootsVariable  = "TARE_ROOTS"
	probesVariable = "TARE_PROBES"
)

func newControlplanePod() *cobra.Command {
	var o pod.Options
	c := &cobra.Command{
		Use:   "pod --address ADDRESS --node ID --identity ID --token-file FILE -- envoy [ARGUMENT...]",
		Short: "Run Envoy in a pod, with a certificate for the pod's service account",
		Long: `Run Envoy as the proxy of an injected pod, until interrupted. The command gets the certificate of the pod's
service account from a control plane by the account's token, starts Envoy with it, and renews it. With --probes it
answers the kubelet's probes for the other containers. The roots of the mesh's certificates are in $TARE_ROOTS and the
probes in $TARE_PROBES, where the webhook of 'tare controlplane --webhook' puts them (docs/injection.md).`,
		Example: `  tare controlplane pod --address controlplane.tare-system:18000 --node shop.web \
    --identity spiffe://mesh.local/ns/shop/sa/web --token-file /run/mesh/token -- envoy --disable-hot-restart`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			for _, f := range [][2]string{{"--address", o.ControlPlane}, {"--node", o.Node}, {"--identity", o.Identity},
				{"--token-file", o.TokenFile}} {
				if f[1] == "" {
					return fault.New(fault.Usage, f[0], usage.SeeHelp(cmd), "missing value")
				}
			}
			if o.Envoy = args; len(args) == 0 {
				return fault.New(fault.Usage, "--", "add the command that starts Envoy: -- envoy", "missing command")
			}
			if o.Roots = []byte(os.Getenv(rootsVariable)); len(o.Roots) == 0 {
				return fault.New(fault.Usage, "$"+rootsVariable, "set it to the roots of the mesh's certificates, as PEM",
					"without roots the control plane cannot be verified")
			}
			if o.Probes != "" {
				if o.Table, err = probes.Parse([]byte(os.Getenv(probesVariable))); err != nil {
					return fault.Wrap(err, fault.Usage, "$"+probesVariable, seePods, "the probes are invalid")
				}
			}
			o.Output = os.Stderr
			o.Log = func(line string) { fmt.Fprintln(os.Stderr, text.Line(line)) }
			return pod.Run(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.ControlPlane, "address", "", "control plane: HOST:PORT")
	f.StringVar(&o.Node, "node", "", "id by which the control plane knows the proxy")
	f.StringVar(&o.Identity, "identity", "", "SPIFFE ID of the pod's service account")
	f.StringVar(&o.TokenFile, "token-file", "", "token of the service account; the file is read again for each request")
	f.StringVar(&o.Probes, "probes", "", "address at which to answer the probes in $TARE_PROBES")
	f.StringVar(&o.ProbeHost, "probe-host", "127.0.0.1",
		"host at which to probe the other containers: the pod's IP, or loopback")
	return c
}
