package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
)

func init() { register(newClean) }

func newClean(c *connection) *cobra.Command {
	var all, dryRun bool
	cmd := &cobra.Command{
		Use:   "clean [NAME...]",
		Short: "Remove temporary agents and pods of experiments that a cluster has not removed by itself",
		Long: `Clean removes temporary agents and pods of experiments whose lifetime is over. The cluster removes them by
itself, unless its controller for Jobs is off. Given the NAME of a run or of agents, clean removes these even if they
are in use. With --all, it removes all runs and all temporary agents of the cluster, or of the namespace of -n,
including those of other users and those in use. It does not remove what 'kubectl tare install' has installed.

All objects of an experiment, and of temporary agents, belong to one Job. Clean also removes objects whose Job is gone,
such as Secrets, if you may list and delete them. Otherwise, it prints for which kinds of objects it has not looked.

If the cluster's garbage collector is off, some objects are left. Clean then prints the command that removes them, and
its exit code is 3.`,
		Example: `  # see what there is
  kubectl tare clean --dry-run
  # remove one run with its agents
  kubectl tare clean tare-x3k5a2
  # remove all runs of a namespace with their agents
  kubectl tare clean -n tare-experiments --all`,
		RunE: func(cmd *cobra.Command, names []string) error {
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
			if left, err = chosen(left, c.overrides.Context.Namespace, names); err != nil {
				return err
			}
			all := all || len(names) > 0
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
	cmd.Flags().BoolVar(&all, "all", false, "also remove what is in use, whoever uses it")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and change nothing")
	return cmd
}

// chosen returns the leftovers of a namespace, or of all if namespace is empty, that have one of the names, or any if
// there are no names. The agents of a run are also found by the run's namespace and name.
func chosen(all []*agents.Leftover, namespace string, names []string) (left []*agents.Leftover, err error) {
	found := map[string]bool{}
	for _, l := range all {
		in, run, _ := strings.Cut(l.Of, "/")
		if namespace != "" && l.Namespace != namespace && in != namespace {
			continue
		}
		found[l.Name] = true
		if run != "" {
			found[run] = true
		}
		if len(names) == 0 || slices.Contains(names, l.Name) || slices.Contains(names, run) {
			left = append(left, l)
		}
	}
	for _, name := range names {
		if !found[name] {
			return nil, fault.New(fault.Usage, text.Clip(name), "kubectl tare clean --dry-run",
				"no run or agents of this name are left")
		}
	}
	return left, nil
}
