package measured

import (
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
)

// rising returns the slices of a window in which each slice of a half has the given number of pieces of work, apart
// from noise.
func rising(first, second int64) []load.Slice {
	s := make([]load.Slice, load.Slices)
	for i := range s {
		s[i] = load.Slice{Done: first + int64(i%3), P50: 1e-6}
		if i >= load.Slices/2 {
			s[i].Done += second - first
		}
	}
	return s
}

// TestWorkGates: a subject's own work trips those gates for loads that apply to it, and the reason names it.
func TestWorkGates(t *testing.T) {
	good := load.Result{
		Mode: load.Closed, Seconds: 1, Done: 2000, Intended: 2000, Sent: 2000, Slices: rising(100, 100),
	}
	for name, c := range map[string]struct {
		change func(*load.Result)
		gate   string
	}{
		"good":   {func(*load.Result) {}, ""},
		"idle":   {func(r *load.Result) { *r = load.Result{Mode: load.Closed, Seconds: 1} }, "idle"},
		"drift":  {func(r *load.Result) { r.Slices = rising(100, 300) }, "drift"},
		"few":    {func(r *load.Result) { r.Done, r.Slices = 2, nil }, ""},
		"errors": {func(r *load.Result) { r.Errors, r.Done = map[string]int64{"apply": 10}, 1990 }, "errors"},
	} {
		r := good
		c.change(&r)
		m := &Measured{
			Setup: &kind.Setup{Duration: time.Second, Gates: param.Values{"errors": "0.001", "drift": "0.1"}},
			Trial: record.Trial{Work: &r, Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 1}}},
		}
		reasons := m.Judge()
		trips := len(reasons) == 1 && reasons[0].Gate == c.gate && strings.HasPrefix(reasons[0].Message, "the subject: ")
		if c.gate == "" && len(reasons) > 0 || c.gate != "" && !trips {
			t.Errorf("%s: %+v", name, reasons)
		}
	}
}
