package load

import (
	"reflect"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestTallyMerge: every count and every histogram is added up, and the result has all of them.
func TestTallyMerge(t *testing.T) {
	one := NewTally()
	one.Began(100, 103, 2)
	one.Answered(100, 103, 205, 100, 200) // late
	one.Answered(90, 95, 100, 100, 200)   // a request of the warm-up, answered in the window
	one.Answered(90, 95, 99, 100, 200)    // answered in the warm-up
	Record(one.Histogram(Connect), 2*Longest)
	sum := NewTally()
	sum.Merge(&one)
	sum.Merge(&one)
	v := reflect.ValueOf(sum)
	for field, value := range v.Fields() {
		switch of := value.Interface; value.Kind() {
		case reflect.Int64:
			if value.Int() != 2 {
				t.Errorf("%s is %d, want 2", field.Name, value.Int())
			}
		case reflect.Pointer:
			if n := of().(*hdrhistogram.Histogram).TotalCount(); n != 2 {
				t.Errorf("%s has %d values, want 2", field.Name, n)
			}
		}
	}
	r := &Result{Seconds: 4}
	if err := sum.Into(r); err != nil {
		t.Fatal(err)
	}
	if len(r.Slices) != Slices || r.Slices[0].Done != 2 || r.Rate != 0.5 || r.Unfinished != 0 {
		t.Errorf("%+v", r)
	}
	for name, want := range map[string]int64{Latency: 105, Service: 102, Lag: 3, OwnLag: 2, Connect: Longest} {
		h, err := r.Histogram(name)
		if err != nil || h == nil || h.TotalCount() != 2 || !h.ValuesAreEquivalent(h.Max(), want) {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}
