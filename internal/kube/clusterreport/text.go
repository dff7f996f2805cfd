package clusterreport

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
)

func init() { register(Format{Name: "text", Help: "for a terminal", Write: Text}) }

// wideFrom is from how many columns on a table has all figures.
const wideFrom = 120

// Text writes the account for a terminal: the answer, the table, what nodes reserve, and what to know of it.
func Text(w io.Writer, c *cluster.Cluster, o Options) error {
	if o.Width <= 0 {
		o.Width = 80
	}
	var b strings.Builder
	for _, p := range lead(c) {
		b.WriteString(text.Wrap(o.Width, "", p))
	}
	if c.Answered > 0 {
		b.WriteString("\n" + table(c, o))
		if rows, left := reserveTable(c, o); len(rows) > 1 {
			b.WriteString("\nReserved for the nodes themselves\n" + aligned(rows, o.Width))
			if left > 0 {
				fmt.Fprintf(&b, "  and %d nodes more\n", left)
			}
			b.WriteString(text.Wrap(o.Width, "", reserveNote))
		}
	}
	for i, r := range remarks(c) {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(text.Wrap(o.Width, r[0]+": ", r[1]))
	}
	return put(w, b.String())
}

// table is the table of a view.
func table(c *cluster.Cluster, o Options) string {
	figures := columns
	if o.Width >= wideFrom {
		figures = slices.Concat(columns, wide)
	}
	head := make([]string, 0, len(figures)+1)
	for _, f := range figures {
		head = append(head, f.head)
	}
	cells := [][]string{append(head, o.view())}
	rows, titles := shown(c, o)
	for i := range rows {
		var r []string
		for _, f := range figures {
			r = append(r, f.of(&rows[i].Usage))
		}
		cells = append(cells, append(r, titles[i]))
	}
	written := aligned(cells, o.Width)
	if strings.Contains(written, "~") {
		written += cellNote + "\n"
	}
	return written
}

// aligned writes rows of figures, to the right, and of a name, which is cut to fit.
func aligned(rows [][]string, width int) string {
	var figures [][]string
	for _, r := range rows {
		figures = append(figures, append([]string{""}, r[:len(r)-1]...)) // the first column is to the left
	}
	widths := text.Widths(figures)
	var b strings.Builder
	for i, r := range rows {
		line := text.Aligned(figures[i], widths, true)
		room := max(width-len([]rune(line))-2, 8)
		b.WriteString(line + "  " + fit(r[len(r)-1], room) + "\n")
	}
	return b.String()
}
