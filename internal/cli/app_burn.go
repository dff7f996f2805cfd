package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/workloads/app/burn"
)

func newAppBurn() *cobra.Command {
	var values param.Values
	var asRole bool
	c := &cobra.Command{
		Use:     "burn",
		Short:   "Keep every CPU busy: a neighbour that wants the whole machine",
		Example: "  tare app burn\n  tare app burn --share 0.5",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := burn.OptionsOf(values)
			if err != nil {
				return wrongUse(cmd, err)
			}
			if asRole {
				conn := unprivileged(cmd.Context())
				return reported(conn, burn.Run(cmd.Context(), o, conn))
			}
			return burn.Serve(cmd.Context(), o, func(r burn.Ready) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "burning %g of each CPU with %s (Ctrl-C ends it)\n", o.Share, quantity.Counted(r.Threads, "thread"))
				return err
			})
		},
	}
	values = param.Flags(c.Flags(), burn.Settings...)
	c.Flags().BoolVar(&asRole, "role", false, "speak the role protocol on standard input and output")
	return c
}
