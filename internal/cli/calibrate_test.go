package cli

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/results/calibrate"
	"tare/internal/scale/ledger"
)

// TestRemark: the row of a weight that was not judged says who disturbed it. If only part of a weight was judged, its
// row says how much.
func TestRemark(t *testing.T) {
	neighbour := []calibrate.Culprit{
		{Comm: "neighbour-bin", Part: 0.25}, {Comm: "neighbour-bin", Cgroup: "/x", Part: 0.04},
		{Comm: "a\x1b[2Jb", Part: 0.02},
	}
	disturbed := func(others, stolen float64, cause ledger.Cause, by []calibrate.Culprit) calibrate.Weight {
		return calibrate.Weight{Verdict: calibrate.Disturbed, Others: others, Stolen: stolen, Cause: cause, Culprits: by}
	}
	judged := func(by, of int) calibrate.Weight {
		return calibrate.Weight{Verdict: calibrate.Pass, Undisturbed: by, Of: of, Parts: "starts"}
	}
	for _, tt := range []struct {
		w    calibrate.Weight
		want string
	}{
		{disturbed(0.31, 0, ledger.Neighbour, neighbour), "other tasks took 31 % of the CPU time (neighbour-bin, a [2Jb)"},
		{disturbed(0.31, 0, ledger.Neighbour, nil), "other tasks took 31 % of the CPU time"},
		{disturbed(0.41, 0.1, ledger.Neighbour, neighbour[:1]),
			"other tasks took 31 % of the CPU time (neighbour-bin), and the hypervisor took 10 % of the CPU time"},
		{disturbed(0.2, 0.19, ledger.Hypervisor, neighbour[:1]), "the hypervisor took 19 % of the CPU time"},
		{judged(400, 1500), "judged by the 400 of 1500 starts that nothing disturbed"},
		{judged(1500, 1500), ""},
	} {
		if got := remark(tt.w); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
		var table bytes.Buffer
		tt.w.Section = "clock"
		err := printCalibration(&table, &calibrate.Report{Weights: []calibrate.Weight{tt.w}})
		if err != nil || !strings.Contains(table.String(), tt.want) {
			t.Errorf("%v: %s", err, &table)
		}
	}
}
