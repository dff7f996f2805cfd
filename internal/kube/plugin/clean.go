package plugin

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/lib/usage"
)

func init() { register(newClean) }

func newClean(c *connection) *cobra.Command {
	var all, dryRun bool
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove temporary agents and pods of experiments that a cluster has not removed by itself",
		Long: `Clean removes temporary agents, and pods of experiments, whose time is over. The cluster removes those by itself,
unless its controller for Jobs is off. With --all it also removes those whose time is not over, which may be in use.
What 'kubectl tare install' has installed stays.

All objects of an experiment, and of temporary agents, belong to one Job. Clean also removes those whose Job is gone,
such as Secrets, if you may list and delete them; otherwise it names what it has not looked for.

Where the cluster's garbage collector is off, something is left: clean names it, with the command that removes it, and
its exit code is 3.`,
		Example: `  kubectl tare clean --dry-run
  kubectl tare clean --all`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := c.open()
			if err != nil {
				return err
			}
			left, hidden, err := client.Leftovers(cmd.Context(), "")
			if err != nil {
				return err
			}
			if len(hidden) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "tare: not looked for, because you may not list them: %s whose Job is gone\n",
					strings.Join(hidden, ", "))
			}
			removed := "removed"
			if dryRun {
				removed = "would remove"
			}
			var errs []error
			for _, l := range left {
				switch {
				case !all && !l.Ended:
					fmt.Fprintf(cmd.OutOrStdout(), "left alone: %s/%s: its time is not over\n", l.Namespace, l.Name)
					continue
				case !dryRun:
					if err := client.Clean(cmd.Context(), l); err != nil {
						errs = append(errs, err)
						continue
					}
				}
				what := "the agents"
				if l.Run {
					what = "the objects of the run"
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s %s/%s\n", removed, what, l.Namespace, l.Name)
			}
			if len(left) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to remove")
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also remove those whose time is not over")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and change nothing")
	return cmd
}
