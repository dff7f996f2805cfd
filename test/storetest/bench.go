package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// Benchmarks weighs a design, in each of its variants. Flush measures a change of one resource, from the decoded
// structure to where programs find it; Lookup measures one question in the kernel.
func Benchmarks(b *testing.B, d store.Design) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	variants := d.Variants
	if len(variants) == 0 {
		variants = []string{""}
	}
	for _, variant := range variants {
		run := func(b *testing.B) {
			b.Run("Flush", func(b *testing.B) { flushes(b, d, variant) })
			b.Run("Lookup", func(b *testing.B) { lookups(b, d, variant) })
		}
		if variant == "" {
			run(b)
			continue
		}
		b.Run(variant, run)
	}
}

func benchOpen(b *testing.B, d store.Design, variant string) store.Store {
	b.Helper()
	s, err := d.Open(store.Options{Variant: variant})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// resident is the maximum number of resources in the store while flushes are measured.
const resident = 100

func flushes(b *testing.B, d store.Design, variant string) {
	for _, kind := range []string{"cluster", "listener"} {
		// Everything is made beforehand: what is measured is the store's work.
		sets := [2][resident]mesh.Change{} // two contents for each name
		deletes := [resident]mesh.Change{}
		for i := range resident {
			if kind == "cluster" {
				a, z := ClusterLoad(i), ClusterLoad(resident+i)
				z.Name = a.Name
				sets[0][i].Clusters, sets[1][i].Clusters = []*mesh.Cluster{a}, []*mesh.Cluster{z}
				deletes[i].RemovedClusters = []string{a.Name}
				continue
			}
			a, z := ListenerLoad(i), ListenerLoad(resident+i)
			z.Name, z.Address = a.Name, a.Address
			sets[0][i].Listeners, sets[1][i].Listeners = []*mesh.Listener{a}, []*mesh.Listener{z}
			deletes[i].RemovedListeners = []string{a.Name}
		}
		ctx := context.Background()
		fill := func(b *testing.B, s store.Store, changes *[resident]mesh.Change) {
			b.Helper()
			for i := range changes {
				if _, err := s.Apply(ctx, changes[i]); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(kind+"/insert", func(b *testing.B) {
			s := benchOpen(b, d, variant)
			var work store.Work
			i := 0
			for b.Loop() {
				if i == resident {
					b.StopTimer()
					fill(b, s, &deletes)
					i = 0
					b.StartTimer()
				}
				w, err := s.Apply(ctx, sets[0][i])
				if err != nil {
					b.Fatal(err)
				}
				work.Add(w)
				i++
			}
			reportWork(b, work)
		})
		b.Run(kind+"/replace", func(b *testing.B) {
			s := benchOpen(b, d, variant)
			fill(b, s, &sets[0])
			var work store.Work
			n := 0
			for b.Loop() {
				w, err := s.Apply(ctx, sets[1-n/resident%2][n%resident])
				if err != nil {
					b.Fatal(err)
				}
				work.Add(w)
				n++
			}
			reportWork(b, work)
		})
		b.Run(kind+"/delete", func(b *testing.B) {
			s := benchOpen(b, d, variant)
			fill(b, s, &sets[0])
			var work store.Work
			i := 0
			for b.Loop() {
				if i == resident {
					b.StopTimer()
					fill(b, s, &sets[0])
					i = 0
					b.StartTimer()
				}
				w, err := s.Apply(ctx, deletes[i])
				if err != nil {
					b.Fatal(err)
				}
				work.Add(w)
				i++
			}
			reportWork(b, work)
		})
	}
}

func reportWork(b *testing.B, w store.Work) {
	n := float64(b.N)
	b.ReportMetric(float64(w.Records)/n, "records/op")
	b.ReportMetric(float64(w.Syscalls)/n, "syscalls/op")
	b.ReportMetric(float64(w.Bytes)/n, "bytes/op")
	b.ReportMetric(float64(w.GracePeriods)/n, "grace-periods/op")
	b.ReportAllocs()
}

func lookups(b *testing.B, d store.Design, variant string) {
	for _, n := range []int{1, 100, 1000, 5000} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			s := benchOpen(b, d, variant)
			var change mesh.Change
			for i := range n {
				change.Clusters = append(change.Clusters, ClusterLoad(i))
				change.Listeners = append(change.Listeners, ListenerLoad(i))
			}
			// A store that waits for a grace period with each record would take minutes.
			for i, end := 0, time.Now().Add(30*time.Second); i < n; i += 25 {
				to := min(n, i+25)
				if _, err := s.Apply(context.Background(),
					mesh.Change{Clusters: change.Clusters[i:to], Listeners: change.Listeners[i:to]}); err != nil {
					b.Skipf("needs a store that holds %d services: %v", n, err)
				}
				if to < n && time.Now().After(end) {
					b.Skipf("needs a store that takes %d services in 30 s: it took %d", n, to)
				}
			}
			ask := NewAsker(b, d, s)
			random := rand.New(rand.NewPCG(1, 2))
			const repeat = 1000 // of each question, so that what is measured is a service in use
			sum, runs := 0.0, 0
			for b.Loop() {
				q := mesh.Question{To: ServiceAddress(random.IntN(n)), Protocol: mesh.TCP}
				sum += float64(ask.Repeat(q, random.Uint64(), repeat))
				runs++
			}
			b.ReportMetric(sum/float64(runs), "ns/lookup")
			b.ReportMetric(0, "ns/op")
		})
	}
}
