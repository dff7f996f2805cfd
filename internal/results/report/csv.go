package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
)

func init() {
	register(Format{
		Name: "csv", Help: "a row for each estimate, or for each number of a ledger, for a spreadsheet",
		Run:    func(w io.Writer, r *Run, _ Options) error { return CSV(w, r.Summary, r.Record) },
		Ledger: func(w io.Writer, l *ledger.Ledger, _ Options) error { return LedgerCSV(w, l) },
		Series: func(w io.Writer, all iter.Seq[*ledger.Ledger], _ Options) error { return SeriesCSV(w, all) },
	})
}

// csvColumns are the columns of the CSV form: those before the factors, then those after them.
var csvColumns = [2][]string{
	{"experiment", "run", "arm", "component", "metric", "unit"},
	{
		"value", "lo", "hi", "confidence", "n", "method", "withheld", "baseline", "difference", "difference_lo",
		"difference_hi", "difference_confidence", "resolved", "unresolved", "smallest_visible", "ratio", "ratio_lo",
		"ratio_hi", "run_valid", "run_partial",
	},
}

// CSV writes a row for each estimate of a summary (RFC 4180), with a column for each factor. Unknown values are empty,
// never 0. Text that a spreadsheet would take for a formula gets a leading apostrophe.
func CSV(w io.Writer, s *analysis.Summary, run record.Run) error {
	factors := map[string]bool{}
	for _, e := range s.Estimates {
		for name := range e.Factors {
			factors[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(factors))
	head := slices.Clone(csvColumns[0])
	head = append(head, lists.Map(names, func(name string) string { return text.Cell("factor_" + name) })...)
	c := csv.NewWriter(w)
	_ = c.Write(append(head, csvColumns[1]...)) // c.Error returns the first error of all writes
	for _, e := range s.Estimates {
		r := lists.Map([]string{s.Experiment, run.ID, e.Arm, e.Component, e.Metric, e.Unit}, text.Cell)
		r = append(r, lists.Map(names, func(name string) string { return text.Cell(e.Factors[name]) })...)
		r = append(r, decimal(&e.Value), decimal(e.Lo), decimal(e.Hi), unlessZero(e.Confidence), strconv.Itoa(e.N),
			text.Cell(e.Method), text.Cell(e.Withheld), text.Cell(e.Baseline))
		d, ratio := e.Difference, e.Ratio
		if d == nil {
			r = append(r, "", "", "", "", "", "", "")
		} else {
			r = append(r, decimal(&d.Value), decimal(d.Lo), decimal(d.Hi), unlessZero(d.Confidence),
				strconv.FormatBool(d.Resolved), text.Cell(d.Unresolved), decimal(d.SmallestVisible))
		}
		if ratio == nil {
			r = append(r, "", "", "")
		} else {
			r = append(r, decimal(&ratio.Value), decimal(ratio.Lo), decimal(ratio.Hi))
		}
		r = append(r, strconv.FormatBool(s.Valid), strconv.FormatBool(s.Partial))
		_ = c.Write(r)
	}
	c.Flush()
	if err := c.Error(); err != nil {
		return fmt.Errorf("writing the estimates as CSV: %w", err)
	}
	return nil
}

func decimal(v *float64) string { return formatted(v, 'g') }

// formatted formats a number as strconv.FormatFloat does. It returns an empty string if the number is unknown or not
// finite.
func formatted(v *float64, format byte) string {
	if v == nil || !finite(*v) {
		return ""
	}
	return strconv.FormatFloat(*v, format, -1, 64)
}

func unlessZero(v float64) string {
	if v == 0 {
		return ""
	}
	return decimal(&v)
}
