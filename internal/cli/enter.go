package cli

import (
	"github.com/spf13/cobra"

	"tare/internal/experiment/placement"
)

func init() { register(newEnter) }

// newEnter is the way of a process into its control groups (package placement). It is not for people.
func newEnter() *cobra.Command {
	return &cobra.Command{
		Use:                placement.EnterCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return placement.Enter(args) },
	}
}
