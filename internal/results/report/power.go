package report

import (
	"fmt"
	"io"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"time"
)

// Power writes for a terminal how many blocks runs like this one need.
func Power(w io.Writer, p *analysis.Power, o Options) error {
	t := newText(w, o)
	t.linef("%s: how many blocks detect a difference of this size in %.3g of 100 runs", t.bold(clean(p.Experiment)),
		100*p.Power)
	t.line("")
	head := []string{"", "at", "baseline", "so far"}
	if len(p.Rows) > 0 {
		for _, n := range p.Rows[0].Needs {
			head = append(head, quantity.Rough(n.Part, quantity.Part))
		}
	}
	rows := [][]string{head}
	hidden := 0
	for _, r := range p.Rows {
		if !o.All && !r.Headline {
			hidden++
			continue
		}
		cells := []string{
			quantity.Label(r.Metric), record.LevelName(r.Factors), quantity.Value(r.Base, r.Unit),
			fmt.Sprintf("+-%s in %d", quantity.Rough(r.Half/r.Base, quantity.Part), r.N),
		}
		cells = append(cells, lists.Map(r.Needs, needText)...)
		rows = append(rows, cells)
	}
	t.columns(rows, nil, false)
	t.wrap("", "With this number of blocks (--blocks), an assertion is decided if its bound is this far from the true "+
		"value. A run with --until takes up to half as many blocks more. The noise is that of this run, and the numbers "+
		"allow for its uncertainty after so few blocks. A second number is for blocks that resemble their neighbours as "+
		"much as this run leaves possible. The time is for the first number.")
	t.hidden(hidden, "further row", "")
	for _, warning := range p.Warnings {
		t.wrap("warning: ", warning)
	}
	return put(w, t.b.String(), "the power")
}

func needText(n analysis.Need) string {
	if n.Blocks == nil {
		return "over 10,000"
	}
	blocks := quantity.Thousands(*n.Blocks)
	if n.Dependent != nil {
		blocks += " to " + quantity.Thousands(*n.Dependent)
	}
	return fmt.Sprintf("%s (%s)", blocks,
		quantity.Wait(time.Duration(*n.Seconds*float64(time.Second))))
}
