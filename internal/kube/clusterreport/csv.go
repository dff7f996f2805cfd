package clusterreport

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
)

func init() {
	register(Format{Name: "csv", Help: "a row for each figure of each row of every view, or of that of --by, for a " +
		"spreadsheet", Write: CSV})
}

// CSV writes the total and the requested view, or all views if none is requested (RFC 4180), with a line for each
// figure of each row. An unknown figure is empty, never 0. A node that did not answer has one line, with the reason in
// place of the figure's name.
func CSV(w io.Writer, c *cluster.Cluster, o Options) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"view", "namespace", "kind", "workload", "pod", "container", "node", "component", "figure",
		"gross", "net", "tare", "shared", "other", "net_known", "tare_known", "missing_parts"}) // out.Error reports errors
	number := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	}
	put := func(view string, r *cluster.Row) {
		for _, f := range r.Figures() {
			s, missing := f.Split, 0
			if s.Known != nil {
				missing = s.Known.Missing
			}
			_ = out.Write([]string{view, text.Cell(r.Namespace), text.Cell(r.Kind), text.Cell(r.Workload), text.Cell(r.Pod),
				text.Cell(r.Container), text.Cell(r.Node), text.Cell(r.Component), f.Name, number(s.Gross), number(s.Net),
				number(s.Tare), number(s.Shared), number(s.Other), number(new(s.NetKnown())), number(new(s.TareKnown())),
				strconv.Itoa(missing)})
		}
	}
	put("total", &cluster.Row{Usage: c.Total})
	for _, view := range cluster.Views() {
		if o.By != "" && o.By != view {
			continue
		}
		for _, r := range c.By(view) {
			put(view, r)
		}
	}
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Failed != "" {
			_ = out.Write([]string{"no answer", "", "", "", "", "", text.Cell(n.Name), "", text.Cell(n.Failed), "", "", "", "",
				"", "", "", ""})
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("writing the account of the cluster as CSV: %w", err)
	}
	return nil
}
