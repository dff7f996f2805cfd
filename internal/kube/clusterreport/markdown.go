package clusterreport

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
)

func init() {
	register(Format{Name: "md", Help: "Markdown, for an issue or a page", Write: Markdown})
}

// Markdown writes the account for an issue or a page.
func Markdown(w io.Writer, c *cluster.Cluster, o Options) error {
	var b strings.Builder
	b.WriteString("# What infrastructure costs this cluster\n")
	for _, p := range lead(c) {
		b.WriteString("\n" + text.Markdown(p) + "\n")
	}
	if c.Answered > 0 {
		head := []string{o.view()}
		figures := slices.Concat(columns, wide)
		for _, f := range figures {
			head = append(head, f.head)
		}
		cells := [][]string{head}
		rows, titles := shown(c, o)
		for i := range rows {
			r := []string{titles[i]}
			for _, f := range figures {
				r = append(r, f.of(&rows[i].Usage))
			}
			cells = append(cells, r)
		}
		b.WriteString("\n## Gross = net + tare\n\n" + text.MarkdownTable(cells, 1))
		if reserve, left := reserveTable(c, o); len(reserve) > 1 {
			for i, r := range reserve {
				reserve[i] = slices.Concat(r[len(r)-1:], r[:len(r)-1])
			}
			b.WriteString("\n## Reserved for the nodes themselves\n\n" + text.MarkdownTable(reserve, 1))
			if left > 0 {
				fmt.Fprintf(&b, "\nAnd %d nodes more.\n", left)
			}
			b.WriteString("\n" + text.Markdown(reserveNote) + "\n")
		}
	}
	if all := remarks(c); len(all) > 0 {
		b.WriteString("\n## Notes\n\n")
		for _, r := range all {
			b.WriteString("- " + text.Markdown(r[0]+": "+r[1]) + "\n")
		}
	}
	return put(w, b.String())
}
