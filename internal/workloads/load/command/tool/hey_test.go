package tool

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestStatusLineUnknown(t *testing.T) {
	whole, err := os.ReadFile("testdata/hey-0.1.5-status.txt")
	if err != nil {
		t.Fatal(err)
	}
	var r Reading
	if err := parseHey(string(whole), &r); err != nil {
		t.Fatal(err)
	}
	r = Reading{}
	err = parseHey(strings.Replace(string(whole), "  [5", "  (5", 1), &r)
	if err == nil || !strings.Contains(err.Error(), "status code distribution") {
		t.Errorf("a status that cannot be read: %v", err)
	}
}

// TestStrangeQuantiles: a warning names a quantile in an unknown form, and the others are read.
func TestStrangeQuantiles(t *testing.T) {
	for _, c := range []struct{ tool, file, old, strange string }{
		{"hey", "testdata/hey-0.1.5-status.txt", "  99%% in ", "  p99: "},
		{"wrk", "testdata/wrk-4.2.0.txt", "     99% ", "     99%:"},
	} {
		whole, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(whole), c.old, c.strange, 1)
		r, err := Parse(c.tool, []byte(changed))
		if err != nil || changed == string(whole) || r.P99 != nil || r.P50 == nil ||
			!strings.Contains(strings.Join(r.Warnings, " "), strings.TrimSpace(c.strange)) {
			t.Errorf("%s: %+v, %v", c.tool, r, err)
		}
	}
}

// TestManyStrangeLines: however many lines are unknown, there are only a few warnings.
func TestManyStrangeLines(t *testing.T) {
	var output strings.Builder
	output.WriteString("Summary:\n  Requests/sec:\t1\n\nStatus code distribution:\n  [200]\t1 responses\n\n" +
		"Latency distribution:\n")
	for i := range 200_000 {
		fmt.Fprintf(&output, "  p%d: 1\n", i)
	}
	r, err := Parse("hey", []byte(output.String()))
	if err != nil || len(r.Warnings) > 2*maxStrange {
		t.Errorf("%d warnings, %v", len(r.Warnings), err)
	}
}

// TestTogether: a sum over parts is unknown if one part lacks the value.
func TestTogether(t *testing.T) {
	n, s, rate := int64(3), 2.0, 1.5
	whole := Part{Requests: &n, Errors: &n, Seconds: &s, Rate: &rate}
	if all := together([]Part{whole, whole}, false); *all.Requests != 6 || *all.Seconds != 2 || *all.Rate != 3 {
		t.Errorf("side by side: %+v", all)
	}
	if all := together([]Part{whole, whole}, true); *all.Seconds != 4 || *all.Rate != 1.5 {
		t.Errorf("one after the other: %+v", all)
	}
	none := 0.0
	short := Part{Requests: &n, Seconds: &none, Rate: &rate}
	if all := together([]Part{whole, short}, true); all.Seconds != nil || *all.Rate != 1.5 {
		t.Errorf("one took less than can be printed: %+v", all)
	}
	if all := together([]Part{whole, {Requests: &n}}, false); *all.Requests != 6 || all.Errors != nil || all.Rate != nil ||
		all.Seconds != nil {
		t.Errorf("one says little: %+v", all)
	}
}
