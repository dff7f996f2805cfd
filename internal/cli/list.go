package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tare/experiments"
	"tare/internal/experiment/engine"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/quantity"
	"tare/internal/results/session"
)

func init() { register(newList) }

func newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [NAME]",
		Short: "List the built-in experiments, or print the spec of one; or list what specs are made of",
		Example: `  tare list
  tare list quickstart > my-experiment.yaml
  tare list loads http`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fault.New(fault.Usage, cmd.CommandPath(), "name one experiment, or none for all",
					"want at most one experiment, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return promptly(cmd.Context(), func() error {
				if len(args) == 1 {
					return printSpec(cmd.OutOrStdout(), args[0])
				}
				return listExperiments(cmd.OutOrStdout())
			})
		},
	}
	copied := slices.Concat(kind.CopySettings, kind.LimitKeys())
	cmd.AddCommand(
		newListKinds("apps", "application", kind.All(kind.Application), copied),
		newListKinds("loads", "load", kind.All(kind.Load), copied),
		newListKinds("subjects", "subject", kind.All(kind.Subject), kind.LimitKeys()),
	)
	return cmd
}

func printSpec(w io.Writer, name string) error {
	_, data, ok := experiments.File(name)
	if !ok {
		return session.NoSuchExperiment("tare list", name, "")
	}
	_, err := w.Write(data)
	return err
}

// listExperiments prints, for each built-in experiment, its question, how long it takes and what it needs.
func listExperiments(w io.Writer) error {
	var b strings.Builder
	for _, name := range experiments.Names() {
		s, err := loadSpec(name)
		if err != nil {
			return err
		}
		needs := strings.Join(append([]string{"cgroup-create"}, s.Needs...), ", ")
		full := engine.Estimate(s)
		if err := s.Apply(spec.Overrides{Quick: true}); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s\n  %s\n  takes about %s (--quick: %s); needs %s\n", name, s.Question, quantity.Wait(full),
			quantity.Wait(engine.Estimate(s)), needs)
	}
	b.WriteString("\n'tare run NAME' runs one; 'tare list NAME' prints its spec, to start your own from.\n" +
		"'kubectl tare run NAME' weighs what is installed in a cluster: " +
		strings.Join(experiments.ClusterNames(), ", ") + ".\n")
	_, err := io.WriteString(w, b.String())
	return err
}
