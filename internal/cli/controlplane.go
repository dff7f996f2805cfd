package cli

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/injection"
)

func init() { register(newControlplane) }

func newControlplane() *cobra.Command {
	var o controlplane.Settings
	var pods ofPods
	var human bool
	c := &cobra.Command{
		Use:   "controlplane --config FILE|DIR",
		Short: "Run the control plane of a small mesh (xDS) until interrupted; changes to its files are sent at once",
		Long: `Run the control plane of a mesh that a file describes, until interrupted. Data planes that speak Envoy's xDS get
their configuration from it, as state of the world or as deltas; changes to the file are sent at once. All *.yaml files
in a directory form one mesh.

If the file lists proxies, each gets only the configuration that concerns it. With mtls, the control plane issues the
proxies' certificates, and sends nothing to a proxy that does not authenticate with its own. With --credentials it
writes a directory for each proxy, with all that the proxy needs to connect: Envoy starts with
'envoy -c DIR/PROXY/envoy.json'. Keys there have mode 0600, and are replaced before their certificates expire. Without
--roots, proxies do not trust a restarted control plane.

With --webhook it injects proxies into new pods of a Kubernetes cluster, which its API server sends for review. The
file of --injection says what is injected (docs/injection.md). API servers verify the webhook with the mesh's root
certificates.`,
		Example: `  tare controlplane --config mesh.yaml
  tare controlplane --config mesh.yaml --listen 127.0.0.1:18000 --admin 127.0.0.1:18001
  tare controlplane --config mesh.yaml --credentials /run/mesh --roots /var/lib/mesh
  tare controlplane --config mesh.yaml --roots /var/lib/mesh --webhook :9443 --injection pods.yaml`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			people := human || isatty.IsTerminal(os.Stdout.Fd())
			if o.File == "" && people {
				return fault.New(fault.Usage, "--config", "see 'tare controlplane --help' and docs/xds.md", "missing value")
			}
			if o.File != "" {
				// Only check that the file can be opened. It is read later, and again whenever it changes.
				if info, err := os.Stat(o.File); err != nil || !info.IsDir() {
					f, err := openFile(o.File, "the configuration")
					if err != nil {
						return err
					}
					f.Close()
				}
			}
			if o.Connections < 1 {
				return fault.New(fault.Usage, "--max-connections", "see 'tare controlplane --help'",
					"must be at least 1, got %d", o.Connections)
			}
			if err := pods.complete(&o); err != nil {
				return err
			}
			if people {
				return forPeople(cmd.Context(), cmd.OutOrStdout(), printControlplane,
					func(ctx context.Context, conn *role.Conn) error {
						return controlplane.Run(ctx, o, conn)
					})
			}
			conn := unprivileged(cmd.Context())
			return reported(conn, controlplane.Run(cmd.Context(), o, conn))
		},
	}
	c.AddCommand(newControlplanePod())
	f := c.Flags()
	f.StringVar(&o.File, "config", "", "mesh file, or directory of mesh files: YAML of services and proxies, and of "+
		"resources in Envoy's form")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", "address to listen on; port 0 takes a free one")
	f.IntVar(&o.Connections, "max-connections", controlplane.MaxConnections,
		"connections that proxies may have open; more are turned away")
	f.StringVar(&o.Credentials, "credentials", "",
		"directory for each proxy's configuration and certificate; no other user may have write access to it")
	f.StringVar(&o.Roots, "roots", "", "directory that keeps the root certificates; without it they are lost when "+
		"the control plane ends")
	f.DurationVar(&o.Life, "life", 0, "lifetime of certificates, at least 1s (default 1h)")
	f.StringVar(&o.Admin, "admin", "", "address at which to serve /metrics for Prometheus, and /changes, the last "+
		"changes as JSON")
	f.StringVar(&o.Webhook.Listen, "webhook", "",
		"address to which API servers send new pods for review (AdmissionReview), over TLS")
	f.StringVar(&pods.injection, "injection", "", "YAML file that says what to inject into pods")
	f.StringSliceVar(&o.Webhook.Names, "webhook-name", []string{"controlplane.tare-system.svc"},
		"DNS names by which API servers know the webhook: SERVICE.NAMESPACE.svc")
	f.StringVar(&pods.keys, "service-account-keys", "",
		"file of a cluster's public keys (/openid/v1/jwks), to issue certificates "+
			"for tokens of its service accounts")
	f.StringVar(&pods.issuer, "service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"issuer of the service account tokens")
	f.StringVar(&pods.audience, "service-account-audience", "tare",
		"audience that service account tokens must name")
	f.BoolVar(&human, "human", false, "print text for people instead of the role protocol; the default on a terminal")
	return c
}

// dnsName matches a lower-case DNS name (RFC 1123).
var dnsName = text.LazyRegexp(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)

// ofPods holds the flags for the pods of a cluster: two names of files, and the issuer and the audience of tokens.
type ofPods struct{ injection, keys, issuer, audience string }

// complete checks the flags, and reads the files that they name into the settings.
func (f ofPods) complete(o *controlplane.Settings) error {
	if f.injection != "" {
		if o.Webhook.Listen == "" {
			return fault.New(fault.Usage, "--injection", "give --webhook as well", "only a webhook injects anything")
		}
		text, err := readFile(f.injection, "the injection file", seePods)
		if err != nil {
			return err
		}
		if o.Webhook.Config, err = injection.ParseConfig(text); err != nil {
			return fault.Wrap(err, fault.Usage, f.injection, seePods, "the injection file is invalid")
		}
	}
	for _, name := range o.Webhook.Names {
		if !dnsName().MatchString(name) || len(name) > 253 {
			return fault.New(fault.Usage, "--webhook-name", "give SERVICE.NAMESPACE.svc", "%q is not a DNS name", name)
		}
	}
	if f.keys != "" {
		const hint = "save the output of 'kubectl get --raw /openid/v1/jwks' and give that file"
		text, err := readFile(f.keys, "the keys of service accounts", hint)
		if err != nil {
			return err
		}
		if o.Accounts, err = authority.NewServiceAccounts(text, f.issuer, f.audience); err != nil {
			return fault.Wrap(err, fault.Usage, f.keys, hint, "not the keys of service accounts")
		}
	}
	return nil
}

// seePods is the hint for errors in the file of --injection.
const seePods = "see docs/injection.md"

func printControlplane(w io.Writer, m role.Message) (err error) {
	switch m.Event {
	case role.Ready:
		var r controlplane.Ready
		if err = decodeMessage(m, &r); err == nil {
			_, err = fmt.Fprintf(w, "the control plane listens at %s: %s from %s\n", r.Address, r, r.Config)
			if err == nil && r.Admin != "" {
				_, err = fmt.Fprintf(w, "metrics: http://%s/metrics; the last changes: http://%s/changes\n", r.Admin, r.Admin)
			}
			if err == nil && r.Webhook != "" {
				_, err = fmt.Fprintf(w, "pods are reviewed at https://%s/; caBundle: %s\n", r.Webhook,
					base64.StdEncoding.EncodeToString(r.WebhookRoots))
			}
			if err == nil && r.Credentials != "" && r.Proxies > 0 {
				_, err = fmt.Fprintf(w, "start a proxy with: envoy -c %s\n",
					filepath.Join(r.Credentials, "PROXY", authority.EnvoyBootstrapFile))
			}
		}
	case role.Log:
		err = printLog(w, m)
	}
	return err
}
