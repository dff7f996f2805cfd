package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
)

// newListKinds returns the command that lists kinds of guests, as specs name them, with their settings. The argument
// all holds the settings that every kind has in addition to its own.
func newListKinds(name, what string, kinds []kind.Guest, all []param.Setting) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     name + " [NAME]",
		Short:   fmt.Sprintf("List the kinds of %s that a spec can have, and every setting of each", what),
		Example: fmt.Sprintf("  tare list %s\n  tare list %s %s --json", name, name, kinds[0].About().Name),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			listed := kinds
			if len(args) > 0 {
				i := slices.IndexFunc(kinds, func(k kind.Guest) bool { return k.About().Name == args[0] })
				if i < 0 || len(args) > 1 {
					names := lists.Map(kinds, func(k kind.Guest) string { return k.About().Name })
					return fault.New(fault.Usage, cmd.CommandPath(), text.Suggest(args[0], names),
						"there is no %s %q", what, strings.Join(args, " "))
				}
				listed = kinds[i : i+1]
			}
			return promptly(cmd.Context(), func() error {
				if asJSON {
					return kindsAsJSON(cmd.OutOrStdout(), listed, all)
				}
				return printKinds(cmd.OutOrStdout(), what, listed, all)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print as JSON; bounds are in seconds, bytes or fractions of 1")
	return c
}

func kindsAsJSON(w io.Writer, kinds []kind.Guest, all []param.Setting) error {
	type entry struct {
		Name     string          `json:"name"`
		Summary  string          `json:"summary"`
		Settings []param.Setting `json:"settings"`
	}
	listed := make([]entry, len(kinds))
	for i, k := range kinds {
		about := k.About()
		listed[i] = entry{about.Name, about.Summary, slices.Concat(about.Settings, all)}
	}
	return json.NewEncoder(w).Encode(listed)
}

func printKinds(w io.Writer, what string, kinds []kind.Guest, all []param.Setting) error {
	var b strings.Builder
	for _, k := range kinds {
		about := k.About()
		fmt.Fprintf(&b, "%s: %s\n", about.Name, about.Summary)
		printSettings(&b, about.Settings)
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "every %s:\n", what)
	printSettings(&b, all)
	_, err := io.WriteString(w, b.String())
	return err
}

func printSettings(b *strings.Builder, settings []param.Setting) {
	for _, s := range settings {
		fmt.Fprintf(b, "  %s: %s", s.Name, s.Accepts())
		if r := s.Range(); r != "" {
			fmt.Fprintf(b, ", %s", r)
		}
		if s.Default != "" {
			fmt.Fprintf(b, "; default %s", s.Default)
		}
		fmt.Fprintf(b, "\n      %s\n", s.Doc)
	}
}
