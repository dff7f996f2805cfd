package cli

import (
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/mesh/push"
)

func TestPrintPush(t *testing.T) {
	times := push.NewTimes(push.Sent, push.Usable, push.Whole, push.Gap)
	for range 1000 {
		times.Add(push.Sent, 400_000)
		times.Add(push.Usable, 200_000)
	}
	times.Add(push.Usable, 3_000_000)
	r := &load.Result{Done: 1001, Seconds: 2, Counts: map[string]float64{push.Tries: 5000, push.Refused: 7}, Errors: map[string]int64{"another-change": 2}}
	if err := times.Into(r); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := printPush(&b, push.Options{What: push.One}, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"changes of one service", "1001 in 2s", "p50 200 us", "p99 200 us", "at most 3.00 ms", "5000, 7 refused, 0 to what is no endpoint", "another-change"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "p99.9") || strings.Contains(b.String(), "together") {
		t.Errorf("says what it does not have:\n%s", b.String())
	}
}
