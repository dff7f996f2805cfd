package report

import (
	"fmt"
	"io"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "md", Help: "Markdown, for a pull request or a page",
		Run: func(w io.Writer, r *Run, _ Options) error { return Markdown(w, r.Summary, r.Record) },
	})
}

// Markdown writes a summary for a pull request, an issue or a page of documentation.
func Markdown(w io.Writer, s *analysis.Summary, run record.Run) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n", escape(s.Experiment), escape(s.Question))
	for _, a := range s.Answers {
		fmt.Fprintf(&b, "\n**%s**\n", escape(a.Answer))
	}
	b.WriteString(verdictsMarkdown(s))
	for _, sec := range sections(s) {
		if sec.title != "" {
			fmt.Fprintf(&b, "\n## %s\n", escape(sec.title))
		}
		b.WriteString("\n" + markdownRow(header(s).cells()...) + "|---|---|---|---|---|---|\n")
		for _, r := range sec.rows {
			b.WriteString(markdownRow(r.cells()...))
		}
	}
	b.WriteString(picturedMarkdown(s, run))
	b.WriteString(grossMarkdown(s))
	list := func(title string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for _, item := range items {
			fmt.Fprintf(&b, "- %s\n", escape(item))
		}
	}
	list("Notes", notes(s, run))
	list("Models", models(s))
	list("Warnings", s.Warnings)
	list("Trials left out", excluded(s))
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

func markdownRow(cells ...string) string {
	var b strings.Builder
	for _, c := range cells {
		b.WriteString("| " + escape(c) + " ")
	}
	return b.String() + "|\n"
}

var escaper = strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`, "]",
	`\]`, "#", `\#`)

// escape keeps what stands in a record from being read as Markdown or HTML.
func escape(s string) string { return escaper.Replace(clean(s)) }
