package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/lib/lists"
	"tare/internal/results/report"
	"tare/internal/results/session"
)

// formatFlag is the flag of all commands that print a document in one of several formats.
const formatFlag = "format"

// registerFormat adds --format to a command, and --json, which is short for --format json.
func registerFormat[D any](c *cobra.Command, s *session.Show, document report.Document[D]) {
	c.Flags().StringVar(&s.Format, formatFlag, "text", strings.Join(document.Names(), ", "))
	s.RegisterJSON(c.Flags(), "print one JSON document and nothing else: short for --format json")
	completeFormats(c, document.Formats())
}

// completeFormats lets shells complete the flag's value, which may be a list.
func completeFormats(c *cobra.Command, formats []report.Format) {
	complete := func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		before := typed[:strings.LastIndex(typed, ",")+1]
		all := lists.Map(formats, func(f report.Format) string { return before + f.Name + "\t" + f.Help })
		return all, cobra.ShellCompDirectiveNoFileComp
	}
	if err := c.RegisterFlagCompletionFunc(formatFlag, complete); err != nil {
		panic(err) // the flag is not defined
	}
}

// formatLines returns the formats with their help, one per line.
func formatLines(formats []report.Format) string {
	lines := lists.Map(formats, func(f report.Format) string { return fmt.Sprintf("  %-12s %s", f.Name, f.Help) })
	return strings.Join(lines, "\n")
}
