package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "md", Help: "Markdown, for a pull request or a page",
		Run:  func(w io.Writer, r *Run, o Options) error { return Markdown(w, r.Summary, r.Record, o) },
		Plan: planMarkdown,
	})
}

// Markdown writes a summary for a pull request, an issue or a page of documentation: the verdicts, the leading table,
// its summary in words and the evidence for it. With Options.All it adds every metric, note and model.
func Markdown(w io.Writer, s *analysis.Summary, run record.Run, o Options) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", escape(s.Experiment), escape(s.Question))
	b.WriteString(verdictsMarkdown(s))
	lead := newLead(s, run)
	if lead.Headline != "" {
		fmt.Fprintf(&b, "\n%s\n", escape(lead.Headline))
	}
	b.WriteString(leadMarkdown(lead))
	short := lead.short(s, run)
	if short != "" {
		fmt.Fprintf(&b, "\n%s\n", escape(short))
	}
	if short == "" || o.All {
		for _, a := range s.Answers {
			fmt.Fprintf(&b, "\n%s\n", escape(a.Answer))
		}
	}
	if o.All {
		everyMetricMarkdown(&b, s, run)
	}
	list := func(title string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for _, item := range items {
			fmt.Fprintf(&b, "- %s\n", escape(item))
		}
	}
	if o.All {
		list("Notes", notes(s, run))
		list("Models", models(s))
	} else {
		list("Notes", absent(s))
	}
	list("Warnings", s.Warnings)
	if o.All {
		list("Trials left out", excluded(s))
	}
	facts := []string{
		"Run: " + validity(s), "Intervals: " + intervals(s), "The scale: " + selfCost(s),
	}
	for _, e := range environment(run) {
		if e != "" {
			facts = append(facts, "Machine: "+e)
		}
	}
	facts = append(facts, fmt.Sprintf("Started: %s, seed %d", started(run), s.Seed))
	list("Validity", facts)
	if len(run.Command) > 0 {
		fmt.Fprintf(&b, "\nRun it again:\n\n    %s\n", clean(again(run)))
	}
	return put(w, b.String(), "the report as Markdown")
}

// everyMetricMarkdown writes the tables of all metrics.
func everyMetricMarkdown(b *strings.Builder, s *analysis.Summary, run record.Run) {
	for _, sec := range sections(s) {
		if sec.title != "" {
			fmt.Fprintf(b, "\n## %s\n", escape(sec.title))
		}
		rows := lists.Map(slices.Concat([]row{header(s)}, sec.rows), row.cells)
		b.WriteString("\n" + text.MarkdownTable(rows, len(rows[0])))
	}
	b.WriteString(functionsMarkdown(s))
	b.WriteString(picturedMarkdown(s, run))
	b.WriteString(grossMarkdown(s))
}

func escape(s string) string { return text.Markdown(s) }
