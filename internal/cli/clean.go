package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tare/internal/host/cgroup"
	"tare/internal/placement"
)

func init() { register(newClean) }

func newClean() *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "Remove what a killed run left behind",
		Long: `Remove what runs that were killed left behind: their control groups and, should any have outlived them, their processes. Runs that are under
way and everything that is not Tare's own are left alone. Programs and maps of a subject go with its process. 'tare run' does the same before it begins.`,
		Example: `  tare clean`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := cgroup.Discover(cgroup.Roots{})
			if err != nil {
				return err
			}
			r, err := placement.Clean(layout)
			if e := printCleaned(cmd.OutOrStdout(), r); err == nil {
				err = e
			}
			return err
		},
	}
}

func printCleaned(w io.Writer, r placement.Report) error {
	for _, t := range r.Trees {
		fmt.Fprintf(w, "removed the control groups %s\n", t)
	}
	for _, p := range r.Killed {
		fmt.Fprintf(w, "ended process %d (%s) of %s\n", p.PID, p.Comm, p.Tree)
	}
	for _, p := range r.Moved {
		fmt.Fprintf(w, "moved process %d (%s) out of %s: it is not tare's\n", p.PID, p.Comm, p.Tree)
	}
	if len(r.Trees)+len(r.Killed)+len(r.Moved) == 0 {
		_, err := fmt.Fprintln(w, "there was nothing to remove")
		return err
	}
	return nil
}
