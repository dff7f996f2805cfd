package delay

import (
	"math"
	"testing"
	"time"

	"tare/internal/lib/fault"
)

func TestParse(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		text          string
		p10, p50, p99 time.Duration
	}{
		{"constant:5ms", 5 * ms, 5 * ms, 5 * ms},
		{"uniform:2ms:10ms", 2800 * time.Microsecond, 6 * ms, 9920 * time.Microsecond},
		{"two-point:2ms:20ms:0.05", 2 * ms, 2 * ms, 20 * ms},
		{"two-point:0s:20ms:1", 20 * ms, 20 * ms, 20 * ms},
	} {
		d, err := Parse(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		for q, want := range map[float64]time.Duration{0.1: tt.p10, 0.5: tt.p50, 0.99: tt.p99} {
			if got := d.Quantile(q); got != want {
				t.Errorf("%s: quantile %g is %v, want %v", tt.text, q, got, want)
			}
		}
	}
	for _, text := range []string{
		"", "constant", "constant:", "constant:5", "constant:-5ms", "constant:5ms:6ms", "uniform:5ms", "uniform:6ms:5ms",
		"normal:1ms:2ms",
		"two-point:1ms:2ms", "two-point:1ms:2ms:2", "two-point:1ms:2ms:NaN", "two-point:2ms:1ms:0.5", "constant:2h",
	} {
		if _, err := Parse(text); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%q: %v, want wrong use with a hint", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("two-point:2ms:20ms:0.05")
	f.Add("uniform:2ms:10ms")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		last := time.Duration(-1)
		for q := 0.0; q <= 1; q += 0.01 {
			v := d.Quantile(q)
			if v < last || v < 0 || v > longest {
				t.Fatalf("%q: quantile %g is %v after %v", text, q, v, last)
			}
			last = v
		}
	})
}

func TestStallEnd(t *testing.T) {
	s := Stall{For: 100, Every: 1000}
	for at, want := range map[int64]int64{0: 0, 499: 499, 500: 600, 599: 600, 600: 600, 1499: 1499, 1500: 1600,
		10_550: 10_600} {
		if got := s.end(500, at); got != want {
			t.Errorf("what is due at %d is answered at %d, want %d", at, got, want)
		}
	}
	if got := (Stall{}).end(0, 7); got != 7 {
		t.Errorf("without stalls: %d", got)
	}
	for _, s := range []Stall{{For: -1, Every: 5}, {For: 5, Every: 5}, {Every: 5}, {For: 5}} {
		if s.Check() == nil {
			t.Errorf("%+v is taken for possible", s)
		}
	}
}

func TestWaitsFollowTheirDistribution(t *testing.T) {
	d, err := Parse("two-point:1ms:9ms:0.2")
	if err != nil {
		t.Fatal(err)
	}
	draw := func(seed uint64) (all []int64) {
		w := NewWaits(Options{Distribution: d, Seed: seed}, 0)
		for range 4000 {
			at, _ := w.Due(0)
			all = append(all, at)
		}
		return all
	}
	a, b, c := draw(1), draw(1), draw(2)
	slow, differ := 0, false
	for i := range a {
		if a[i] != b[i] {
			t.Fatal("the same seed gave other delays")
		}
		differ = differ || a[i] != c[i]
		if a[i] == int64(9*time.Millisecond) {
			slow++
		}
	}
	if !differ {
		t.Error("another seed gave the same delays")
	}
	if math.Abs(float64(slow)-800) > 5*math.Sqrt(4000*0.2*0.8) {
		t.Errorf("%d of 4000 waited the longer time, want about 800", slow)
	}
}

// TestWaitsSkipped: requests of a load's warm-up wait like all others, but their waits are not recorded.
func TestWaitsSkipped(t *testing.T) {
	d, err := Parse("constant:1ms")
	if err != nil {
		t.Fatal(err)
	}
	w := NewWaits(Options{Distribution: d, Skip: 3}, 0)
	for i := range 5 {
		at, record := w.Due(0)
		if at != int64(time.Millisecond) || record != (i >= 3) {
			t.Errorf("request %d: due %d, record %v", i, at, record)
		}
	}
}
