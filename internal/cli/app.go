package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	apphttp "tare/internal/app/http"
	"tare/internal/role"
)

func init() { register(newApp) }

func newApp() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "app",
		Short:   "Run an application for experiments to serve as what is put under load",
		Example: "  tare app http --listen 127.0.0.1:8080",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAppHTTP())
	return cmd
}

func newAppHTTP() *cobra.Command {
	var o apphttp.Options
	var asRole bool
	cmd := &cobra.Command{
		Use:   "http",
		Short: "Serve HTTP: echo a body, or answer with one of a given size, after a given delay",
		Example: `  tare app http --listen 127.0.0.1:8080 --body 1024
  tare app http --listen 127.0.0.1:8080 --delay 2ms`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asRole {
				conn := role.NewConn(os.Stdin, os.Stdout)
				return reported(conn, apphttp.Run(cmd.Context(), o, conn))
			}
			return apphttp.Serve(cmd.Context(), o, func(r apphttp.Ready) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "serving http://%s/ (Ctrl-C ends it)\n", r.Address)
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", "address to listen on; port 0 takes a free one")
	f.DurationVar(&o.Delay, "delay", 0, "time between a request and its answer")
	f.IntVar(&o.Body, "body", 128, "bytes of the answer to a request without a body")
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	return cmd
}
