package report

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
)

// grossHead names the columns of grossCells.
var grossHead = []string{"CPU gross", "net", "tare", "hard gross", "net", "tare"}

// grossTitle is the title of tables of gross, tare and net.
const grossTitle = "Gross = net + tare"

// grossCells returns gross, net and tare of a workload: first CPU time, then hard memory.
func grossCells(w ledger.Workload) []string {
	return []string{
		orDash(w.GrossCPU, quantity.Seconds), orDash(w.NetCPU, quantity.Seconds), orDash(w.TareCPU, quantity.Seconds),
		orDash(w.GrossMemory, quantity.Bytes), orDash(w.NetMemory, quantity.Bytes), orDash(w.TareMemory, quantity.Bytes),
	}
}

// grossLine returns a row for a terminal: the cells, and then the name of the application and its arm.
func grossLine(cells []string, whose string) string {
	var b strings.Builder
	for i, c := range cells {
		if i%3 == 0 {
			b.WriteString(" ")
		}
		if i > 0 && i%3 == 0 {
			b.WriteString(" ")
		}
		fmt.Fprintf(&b, " %10s", c)
	}
	return b.String() + "  " + whose
}

// maxGross is the maximum number of rows of the table in a terminal and in Markdown. The HTML report and summary.json
// have all rows.
const maxGross = 20

// grossOf returns the rows of the summary's table and a note on how to read them. The baseline's twin has no rows if
// there are other arms.
func grossOf(s *analysis.Summary) (rows []tableRow, note string) {
	for _, w := range withoutTwin(s.Workloads, func(w analysis.Workload) string { return w.Arm }) {
		rows = append(rows, tableRow{
			Name: w.Name, Arm: s.ArmName(w.Arm), Level: s.At(w.Factors), Cells: grossCells(w.Workload),
		})
	}
	note = "means of one window over the valid trials, without intervals; hard memory at the end of it"
	if left := len(rows) - maxGross; left > 0 {
		rows = rows[:maxGross]
		note += fmt.Sprintf("; %d more rows are in %s", left, record.SummaryFile)
	}
	return rows, note
}

// gross writes the table of gross, tare and net for a terminal.
func (t *screen) gross(s *analysis.Summary) {
	rows, note := grossOf(s)
	if len(rows) == 0 {
		return
	}
	t.line(t.bold(grossTitle) + ": " + note)
	t.line(grossLine(grossHead, "application, arm"))
	for _, r := range rows {
		t.line(grossLine(r.Cells, clean(r.Name)+", "+clean(r.at())))
	}
	t.line("")
}

// grossMarkdown returns the table of gross, tare and net in Markdown; empty if there are no rows.
func grossMarkdown(s *analysis.Summary) string {
	rows, note := grossOf(s)
	if len(rows) == 0 {
		return ""
	}
	table := [][]string{slices.Concat([]string{"application", "arm"}, grossHead)}
	for _, r := range rows {
		table = append(table, slices.Concat([]string{r.Name, r.at()}, r.Cells))
	}
	return fmt.Sprintf("\n## %s\n\n%s.\n\n", grossTitle, analysis.Capital(note)) + text.MarkdownTable(table, 2)
}
