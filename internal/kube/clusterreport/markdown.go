package clusterreport

import (
	"bytes"
	"fmt"
	"io"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
)

func init() {
	register(Format{Name: "md", Help: "Markdown, for an issue or a page", Write: Markdown})
}

// Markdown writes the account for an issue or a page.
func Markdown(w io.Writer, c *cluster.Cluster, o Options) error {
	var b bytes.Buffer
	b.WriteString("# What infrastructure costs this cluster\n")
	for _, p := range lead(c) {
		b.WriteString("\n" + text.Markdown(p) + "\n")
	}
	if c.Answered > 0 {
		b.WriteString("\n## Gross = net + tare\n\n" + text.MarkdownTable(viewTable(c, o, everyColumn), 1))
		if reserve, left := reserveTable(c, o); len(reserve) > 1 {
			b.WriteString("\n## " + reserveTitle + "\n\n" + text.MarkdownTable(reserve, 1))
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
	if _, err := b.WriteTo(w); err != nil {
		return fmt.Errorf("writing the account of the cluster: %w", err)
	}
	return nil
}
