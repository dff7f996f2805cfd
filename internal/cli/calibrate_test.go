package cli

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/calibrate"
	"tare/internal/ledger"
)

// The row of a weight that was not judged says who is to blame.
func TestRemark(t *testing.T) {
	neighbour := []calibrate.Culprit{{Comm: "neighbour-bin", Part: 0.25}, {Comm: "neighbour-bin", Cgroup: "/x", Part: 0.04}, {Comm: "a\x1b[2Jb", Part: 0.02}}
	for _, tt := range []struct {
		w    calibrate.Weight
		want string
	}{
		{calibrate.Weight{Verdict: calibrate.Disturbed, Others: 0.31, Cause: ledger.Neighbour, Culprits: neighbour},
			"other tasks took 31 % of the CPU time (neighbour-bin, a [2Jb)"},
		{calibrate.Weight{Verdict: calibrate.Disturbed, Others: 0.31, Cause: ledger.Neighbour}, "other tasks took 31 % of the CPU time"},
		{calibrate.Weight{Verdict: calibrate.Disturbed, Others: 0.41, Stolen: 0.1, Cause: ledger.Neighbour, Culprits: neighbour[:1]},
			"other tasks took 31 % of the CPU time (neighbour-bin), and the hypervisor took 10 % of the CPU time"},
		{calibrate.Weight{Verdict: calibrate.Disturbed, Others: 0.2, Stolen: 0.19, Cause: ledger.Hypervisor, Culprits: neighbour[:1]},
			"the hypervisor took 19 % of the CPU time"},
		{calibrate.Weight{Verdict: calibrate.Pass, Undisturbed: 400, Of: 1500, Parts: "starts"}, "by the 400 of 1500 starts that nothing disturbed"},
		{calibrate.Weight{Verdict: calibrate.Pass, Undisturbed: 1500, Of: 1500, Parts: "starts"}, ""},
	} {
		if got := remark(tt.w); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		var table bytes.Buffer
		tt.w.Section = "clock"
		if err := printCalibration(&table, &calibrate.Report{Weights: []calibrate.Weight{tt.w}}); err != nil || !strings.Contains(table.String(), tt.want) {
			t.Errorf("%v: %s", err, &table)
		}
	}
}
