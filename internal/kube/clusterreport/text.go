package clusterreport

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
)

func init() { register(Format{Name: "text", Help: "for a terminal", Write: Text}) }

// widest is the width of sentences, in characters; figures and names may take all of a terminal.
const widest = 80

// Text writes the account for a terminal: the answer, the table, what nodes reserve, and remarks.
func Text(w io.Writer, c *cluster.Cluster, o Options) error {
	var b bytes.Buffer
	width := widest
	if o.Width > 0 {
		width = min(width, o.Width)
	}
	for _, p := range lead(c) {
		b.WriteString(text.Wrap(width, "", p))
	}
	if c.Answered > 0 {
		table := aligned(viewTable(c, o, columns), o.Width)
		b.WriteString("\n" + table)
		if strings.Contains(table, "~") {
			b.WriteString(cellNote + "\n")
		}
		if rows, left := reserveTable(c, o); len(rows) > 1 {
			b.WriteString("\n" + reserveTitle + "\n" + aligned(rows, o.Width))
			if left > 0 {
				fmt.Fprintf(&b, "  and %d nodes more\n", left)
			}
			b.WriteString(text.Wrap(width, "", reserveNote))
		}
	}
	for i, r := range remarks(c) {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(text.Wrap(width, r[0]+": ", r[1]))
	}
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("writing the account of the cluster: %w", err)
	}
	return nil
}

// aligned writes rows of figures and a name. Figures are aligned to the right. The name follows, cut to the width
// unless that is 0.
func aligned(rows [][]string, width int) string {
	// The name in the first column is not aligned.
	figures := lists.Map(rows, func(r []string) []string { return append([]string{""}, r[1:]...) })
	widths := text.Widths(figures)
	var b strings.Builder
	for i, r := range rows {
		line := text.Aligned(figures[i], widths, true)
		name := text.Clean(r[0])
		if width > 0 {
			name = fit(name, max(width-len([]rune(line))-2, 8))
		}
		b.WriteString(line + "  " + name + "\n")
	}
	return b.String()
}
