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

// width is the width of lines, in characters.
const width = 80

// Text writes the account for a terminal: the answer, the table, what nodes reserve, and remarks.
func Text(w io.Writer, c *cluster.Cluster, o Options) error {
	var b bytes.Buffer
	for _, p := range lead(c) {
		b.WriteString(text.Wrap(width, "", p))
	}
	if c.Answered > 0 {
		table := aligned(viewTable(c, o, columns))
		b.WriteString("\n" + table)
		if strings.Contains(table, "~") {
			b.WriteString(cellNote + "\n")
		}
		if rows, left := reserveTable(c, o); len(rows) > 1 {
			b.WriteString("\n" + reserveTitle + "\n" + aligned(rows))
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

// aligned writes rows of figures and a name. Figures are aligned to the right. The name follows, cut to fit.
func aligned(rows [][]string) string {
	// The name in the first column is not aligned.
	figures := lists.Map(rows, func(r []string) []string { return append([]string{""}, r[1:]...) })
	widths := text.Widths(figures)
	var b strings.Builder
	for i, r := range rows {
		line := text.Aligned(figures[i], widths, true)
		room := max(width-len([]rune(line))-2, 8)
		b.WriteString(line + "  " + fit(r[0], room) + "\n")
	}
	return b.String()
}
