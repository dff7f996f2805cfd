package mapinmap

import (
	"os"
	"testing"

	"tare/internal/mesh/store"
	"tare/internal/mesh/store/records/keep"
	"tare/test/storetest"
)

// TestNaiveConformance runs the part of the suite for which naive is fast enough: it waits for readers a hundred times
// for a cluster, some 10 ms each. TARE_STORE_NAIVE=1 runs all of it, in some nine minutes.
func TestNaiveConformance(t *testing.T) {
	if os.Getenv("TARE_STORE_NAIVE") == "" {
		storetest.Outline(t, Naive)
		return
	}
	storetest.Conformance(t, Naive)
}

// TestPooledConformance in a short run is an outline of the variant that begins with few maps: an emulated processor
// makes fifty a second.
func TestPooledConformance(t *testing.T) {
	if testing.Short() {
		d := Pooled
		d.Variants = []string{onDemand}
		storetest.Outline(t, d)
		return
	}
	storetest.Conformance(t, Pooled)
}

func BenchmarkNaive(b *testing.B)  { storetest.Benchmarks(b, Naive) }
func BenchmarkPooled(b *testing.B) { storetest.Benchmarks(b, Pooled) }

// BenchmarkOpen measures how long a writer takes to open each store with the default options.
func BenchmarkOpen(b *testing.B) {
	for _, o := range []store.Options{{Variant: "naive"}, {Variant: ahead}, {Variant: background}, {Variant: onDemand}} {
		b.Run(o.Variant, func(b *testing.B) {
			open := Pooled.Open
			if o.Variant == "naive" {
				open = Naive.Open
			}
			for b.Loop() {
				s, err := open(o)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if p, ok := s.(*keep.Store).Records().(*pooled); ok {
					b.ReportMetric(float64(p.size), "records")
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
