package report

import (
	"encoding/json"
	"io"
	"iter"

	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/results/plan"
	"tare/internal/scale/ledger"
)

func init() {
	register(Format{
		Name: "json", Help: "one JSON document, with its schema",
		Run:        func(w io.Writer, r *Run, _ Options) error { return JSON(w, r.Summary) },
		Comparison: func(w io.Writer, c *comparison.Comparison, _ Options) error { return AsJSON(w, c) },
		History:    func(w io.Writer, c *comparison.Course, _ Options) error { return AsJSON(w, c) },
		Power:      func(w io.Writer, p *analysis.Power, _ Options) error { return AsJSON(w, p) },
		Plan:       func(w io.Writer, p *plan.Plan, _ Options) error { return AsJSON(w, p) },
		Ledger: func(w io.Writer, l *ledger.Ledger, _ Options) error {
			e := json.NewEncoder(w)
			e.SetIndent("", " ")
			return e.Encode(l)
		},
		Series: func(w io.Writer, all iter.Seq[*ledger.Ledger], _ Options) error {
			e := json.NewEncoder(w) // a document without indentation is one line
			return each(all, func(l *ledger.Ledger) error { return e.Encode(l) })
		},
	})
}

// JSON writes summary.json.
func JSON(w io.Writer, s *analysis.Summary) error { return AsJSON(w, s) }

// AsJSON writes a summary, a comparison, a history or another struct as one JSON document, indented by two spaces.
func AsJSON(w io.Writer, document any) error { return text.WriteJSON(w, document) }
