package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	appmesh "tare/internal/mesh/services"
)

func newAppMesh() *cobra.Command {
	var listen string
	var values param.Values
	var asRole bool
	cmd := &cobra.Command{
		Use:   "mesh",
		Short: "Run a whole mesh: a control plane with made-up services, whose endpoints change on request of 'tare load push'",
		Example: `  tare app mesh --services 1000
  tare app mesh --services 5000 --endpoints 20 --listen 127.0.0.1:18000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := appmesh.OptionsOf(values)
			if err != nil {
				return wrongUse(cmd, err)
			}
			o.Listen = listen
			if asRole {
				conn := unprivileged(cmd.Context())
				return reported(conn, appmesh.Run(cmd.Context(), o, conn))
			}
			return appmesh.Serve(cmd.Context(), o, func(r appmesh.Ready) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "the control plane of %s of %s each listens at %s, and takes changes at %s (Ctrl-C ends it)\n",
					quantity.Counted(r.Services, "service"), quantity.Counted(r.Endpoints, "endpoint"), r.Address, r.Control)
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:0", "address of the control plane; port 0 takes a free one")
	values = param.Flags(f, appmesh.Settings...)
	f.BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	return cmd
}
