package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"tare/internal/lib/delay"
	"tare/internal/lib/param"
	apphttp "tare/internal/workloads/app/http"
)

func init() { register(newApp) }

func newApp() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "app",
		Short:   "Run an application for a load to put to work",
		Example: "  tare app http --listen 127.0.0.1:8080",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAppHTTP(), newAppMesh(), newAppBurn())
	return cmd
}

func newAppHTTP() *cobra.Command {
	var only apphttp.Options // those that the command line alone has
	var values param.Values
	var asRole bool
	var distribution string
	cmd := &cobra.Command{
		Use:   "http",
		Short: "Serve HTTP, gRPC or TCP: echo a body, or answer with one of a given size, after a given delay",
		Example: `  tare app http --listen 127.0.0.1:8080 --body 1024
  tare app http --listen 127.0.0.1:8080 --delay 2ms
  tare app http --listen 127.0.0.1:8080 --protocol http2
  tare app http --listen 127.0.0.1:8443 --tls
  tare app http --listen 127.0.0.1:8080 --protocol grpc --echo=false
  tare app http --listen 127.0.0.1:8080 --delay-dist two-point:2ms:20ms:0.05 --stall 500ms --stall-every 2s`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := apphttp.OptionsOf(values)
			o.Listen, o.Seed, o.Stall, o.Skip = only.Listen, only.Seed, only.Stall, only.Skip
			if err == nil && distribution != "" {
				o.Distribution, err = delay.Parse(distribution)
			}
			if asRole {
				conn := unprivileged(cmd.Context())
				if err == nil {
					err = apphttp.Run(cmd.Context(), o, conn)
				}
				return reported(conn, err)
			}
			if err != nil {
				return err
			}
			return apphttp.Serve(cmd.Context(), o, func(r apphttp.Ready) error {
				scheme := "http"
				if o.TLS {
					scheme = "https"
				}
				if o.Protocol == apphttp.TCP {
					scheme = "tcp"
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "serving %s://%s/ (Ctrl-C ends it)\n", scheme, r.Address)
				return err
			})
		},
	}
	f := cmd.Flags()
	values = param.Flags(f, apphttp.Settings...)
	f.StringVar(&only.Listen, "listen", "127.0.0.1:0", "address to listen on; port 0 takes a free one")
	f.StringVar(&distribution, "delay-dist", "", "distribution of the delay, instead of --delay: constant:5ms, uniform:2ms:10ms, two-point:2ms:20ms:0.05")
	f.Uint64Var(&only.Seed, "seed", 1, "seed of --delay-dist")
	f.DurationVar(&only.Stall.For, "stall", 0, "length of stalls, in which nothing is answered; 0 for none")
	f.DurationVar(&only.Stall.Every, "stall-every", 0, "time from the beginning of one stall to that of the next")
	f.Int64Var(&only.Skip, "skip", 0, "requests at the beginning that are not recorded (--role)")
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	return cmd
}
