package cli

import (
	"os"

	"github.com/spf13/cobra"

	"tare/internal/kind"
	"tare/internal/role"
)

func init() { register(newPlay) }

// newPlay is the process of any guest that plays (kind.Player), in an experiment. It is not for people.
func newPlay() *cobra.Command {
	return &cobra.Command{
		Use:                kind.PlayCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			conn := role.NewConn(os.Stdin, os.Stdout)
			return reported(conn, kind.Play(cmd.Context(), conn, args))
		},
	}
}
