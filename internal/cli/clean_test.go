package cli

import (
	"strings"
	"testing"

	"tare/internal/experiment/placement"
)

// TestPrintCleaned: what was left alone is listed with what to do about it.
func TestPrintCleaned(t *testing.T) {
	for _, c := range []struct {
		r    cleaned
		want []string
	}{
		{cleaned{}, []string{"nothing to remove\n"}},
		{cleaned{Links: []string{"tare7n1"}}, []string{"removed the network interface tare7n1\n"}},
		{cleaned{DryRun: true, Links: []string{"tare7n1"}, Report: placement.Report{Trees: []string{"tare-x-p1-t2"},
			Killed: []placement.Process{{PID: 7, Comm: "x", Tree: "tare-x-p1-t2"}}}}, []string{
			"would remove the network interface tare7n1\n", "would remove the control groups tare-x-p1-t2\n",
			"would end process 7 (x) of tare-x-p1-t2\n",
		}},
		{cleaned{Report: placement.Report{Trees: []string{"tare-x-p1-t2"}}, Pins: []string{"/sys/fs/bpf/x"}}, []string{
			"removed the control groups tare-x-p1-t2\n", "left alone: the eBPF pin /sys/fs/bpf/x, made since",
		}},
		{cleaned{Left: []placement.Left{{What: "the network interface tare7n1", Tree: "tare-nodes-p7-t8"},
			{What: "the sandbox x"}}}, []string{
			"left alone: the network interface tare7n1 of tare-nodes-p7-t8\n", "left alone: the sandbox x\n", "--ended",
		}},
		{cleaned{Left: []placement.Left{{What: "the control groups", Tree: "tare-x-p7-t8", Ending: 7}}}, []string{
			"left alone: the control groups of tare-x-p7-t8: process 7 was killed and has not ended: look at",
		}},
	} {
		var out strings.Builder
		if err := printCleaned(&out, c.r); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%+v: %q lacks %q", c.r, out.String(), want)
			}
		}
		ending := len(c.r.Left) > 0 && c.r.Left[0].Ending > 0
		if ended := strings.Contains(out.String(), "--ended"); ended != (len(c.r.Left) > 0 && !ending) {
			t.Errorf("%+v: %q", c.r, out.String())
		}
		if nothing := strings.Contains(out.String(),
			"nothing"); nothing != (len(c.r.Links)+len(c.r.Left)+len(c.r.Trees) == 0) {
			t.Errorf("%+v: %q", c.r, out.String())
		}
	}
}
