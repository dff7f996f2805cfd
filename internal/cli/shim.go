package cli

import (
	"os"

	"github.com/spf13/cobra"

	"tare/internal/sandboxes/oci"
)

func init() { register(newShim) }

// newShim stands beside a container (package oci). It is not for people.
func newShim() *cobra.Command {
	return &cobra.Command{
		Use:                oci.ShimCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			status, err := oci.Shim(args)
			if err == nil && status != 0 {
				os.Exit(status) // the container's own
			}
			return err
		},
	}
}
