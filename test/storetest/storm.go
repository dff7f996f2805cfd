package storetest

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// storm runs readers on every CPU that ask questions while a writer replaces the resources that they ask for. Every
// part of an answer shows its version: the endpoint's address and its port, the limit of connections, and the cluster,
// which shows the listener's version. What the design promises must hold: no answer mixes parts of two versions of one
// resource (PerResource) or of two changes (PerChange), and none is older than what had been applied when it was asked
// for. What the design does not promise is counted and logged.
func (s *suite) storm(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(k int) mesh.Change
	}{
		// Only the cluster is replaced, in place if the design does that.
		{"Cluster", func(k int) mesh.Change { return mesh.Change{Clusters: []*mesh.Cluster{version("even", k)}} }},
		// One change replaces both clusters and the listener, which goes to one cluster in even versions and to the other in
		// odd ones.
		{"Change", func(k int) mesh.Change {
			return mesh.Change{Clusters: []*mesh.Cluster{version("even", k), version("odd", k)},
				Listeners: []*mesh.Listener{versionListener(k)}}
		}},
		// Other clusters come and go meanwhile, so that released memory is used again at once.
		{"Churn", func(k int) mesh.Change {
			change := mesh.Change{Clusters: []*mesh.Cluster{version("even", k)}}
			i := k / 2 % 16
			other := version(fmt.Sprintf("other-%d", i), k)
			if k%2 == 0 {
				change.Clusters = append(change.Clusters, other)
				change.Listeners = append(change.Listeners, service(1+i, other.Name))
			} else {
				change.RemovedClusters = []string{other.Name}
				change.RemovedListeners = []string{fmt.Sprintf("listener-%d", 1+i)}
			}
			return change
		}},
	} {
		t.Run(c.name, func(t *testing.T) { s.readers(t, c.name == "Change", c.make) })
	}
}

// version returns a cluster of which every part shows k. The number of endpoints varies, so that a lookup that combines
// the number of one version with the endpoints of another is noticed. Sometimes the number is large, so that the
// cluster no longer fits into its place in the store.
func version(name string, k int) *mesh.Cluster {
	c := &mesh.Cluster{Name: name, Breakers: mesh.Breakers{MaxConnections: uint32(k)}, Localities: []mesh.Locality{{}}}
	n := 1 + k*7%15
	if k%16 == 15 {
		n = 40
	}
	for i := range n {
		c.Localities[0].Endpoints = append(c.Localities[0].Endpoints,
			mesh.Endpoint{Address: versionEndpoint(k, i), Weight: uint32(1 + (k+i)%5)})
	}
	return c
}

// versionEndpoint returns an IPv6 address with k in both halves, and the low bits of k as the port.
func versionEndpoint(k, i int) netip.AddrPort {
	var b [16]byte
	b[0], b[15] = 0xfd, byte(i)
	for j := range 4 {
		b[1+j], b[11+j] = byte(k>>(8*j)), byte(k>>(8*j))
	}
	return netip.AddrPortFrom(netip.AddrFrom16(b), uint16(k))
}

func versionListener(k int) *mesh.Listener {
	return service(0, [...]string{"even", "odd"}[k%2])
}

// seen counts the answers that readers got.
type seen struct {
	answers int
	moved   int    // with another version than the answer before
	torn    int    // with parts of two versions of one resource
	mixed   int    // with the versions of two changes
	holes   int    // without an endpoint
	stale   int    // with a version older than the last one applied before the question, or newer than any begun
	foreign int    // with an endpoint or a cluster that no version has
	example string // describes the first wrong answer
}

func (s *seen) add(o seen) {
	s.answers += o.answers
	s.moved += o.moved
	s.torn += o.torn
	s.mixed += o.mixed
	s.holes += o.holes
	s.stale += o.stale
	s.foreign += o.foreign
	if s.example == "" {
		s.example = o.example
	}
}

// readers applies the changes that next returns for k = 1025, 1026, ... while readers on all CPUs ask questions. It
// fails the test if they see what the design promises not to show. If whole is set, each change also replaces the
// listener, and answers must come from a listener and a cluster of the same change.
func (s *suite) readers(t *testing.T, whole bool, next func(k int) mesh.Change) {
	const first = 1 << 10 // so that version numbers have more than one byte
	st := s.open(t, s.small())
	ask := NewAsker(t, s.design, st)
	apply(t, st, mesh.Change{Clusters: []*mesh.Cluster{version("even", first), version("odd", first)},
		Listeners: []*mesh.Listener{versionListener(first)}})
	even, _ := st.Cluster("even")
	odd, _ := st.Cluster("odd")

	var begun, ended atomic.Int64 // versions that a change has begun to write, and has written
	begun.Store(first)
	ended.Store(first)
	var stop atomic.Bool
	var wait, ready sync.WaitGroup
	results := make([]seen, max(2, runtime.NumCPU()))
	ready.Add(len(results))
	for i := range results {
		wait.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine, and with it the binding to a CPU
			var set unix.CPUSet
			set.Set(i % runtime.NumCPU())
			_ = unix.SchedSetaffinity(0, &set) // if this process may not use that CPU, any will do
			ready.Done()
			results[i] = read(ask.Another(), uint64(i), even, odd, whole, &begun, &ended, &stop)
		})
	}
	ready.Wait()
	done := 0
	var err error
	for b := s.budget(24, 700*time.Millisecond); done < 50000 && b.more() && err == nil; {
		done++
		k := first + done
		change := next(k)
		begun.Store(int64(k))
		_, err = st.Apply(context.Background(), change)
		ended.Store(int64(k))
	}
	stop.Store(true)
	wait.Wait()
	if err != nil {
		t.Fatal(err)
	}
	var all seen
	for _, r := range results {
		all.add(r)
	}
	t.Logf("%d changes, %d answers, %d of them of another version than the one before: %d torn, %d of two changes, %d "+
		"without endpoint, %d stale, %d foreign%s",
		done, all.answers, all.moved, all.torn, all.mixed, all.holes, all.stale, all.foreign, all.example)
	if all.moved == 0 {
		t.Errorf("readers saw nothing at all")
	}
	promised := all.foreign
	if s.design.Atomic >= store.PerResource {
		promised += all.torn + all.holes + all.stale
	}
	if s.design.Atomic >= store.PerChange {
		promised += all.mixed
	}
	if s.design.Atomic == store.PerRecord {
		promised = 0 // anything may be seen
	}
	if promised > 0 {
		t.Errorf("the design promises that changes are seen whole %s; it is not so", s.design.Atomic)
	}
}

// read asks questions until stop is set.
func read(ask *Asker, seed uint64, even, odd uint32, whole bool, begun, ended *atomic.Int64,
	stop *atomic.Bool) (s seen) {
	q := mesh.Question{To: ServiceAddress(0), Protocol: mesh.TCP}
	random, last := seed*0x9e3779b97f4a7c15, int64(0)
	for first := true; first || !stop.Load(); first = false {
		for range 64 {
			random = random*6364136223846793005 + 1442695040888963407
			least := ended.Load()
			got := ask.Ask(q, random)
			most := begun.Load()
			s.answers++
			note := func(n *int, what string) {
				if *n++; s.example == "" {
					s.example = fmt.Sprintf("; the first was %s: %+v between versions %d and %d", what, got, least, most)
				}
			}
			if got.Verdict != mesh.Accept {
				note(&s.holes, "without endpoint")
				continue
			}
			b := got.Endpoint.Addr().As16()
			low, high := int64(0), int64(0)
			for j := range 4 {
				low |= int64(b[1+j]) << (8 * j)
				high |= int64(b[11+j]) << (8 * j)
			}
			k := int64(got.MaxConnections)
			switch {
			case b[0] != 0xfd || got.Cluster != even && got.Cluster != odd:
				note(&s.foreign, "foreign")
			case low != high || uint16(low) != got.Endpoint.Port() || low != k ||
				int(b[15]) >= len(version("", int(k)).Localities[0].Endpoints):
				note(&s.torn, "torn")
			case k < least || k > most:
				note(&s.stale, "stale")
			case whole && (got.Cluster == odd) != (k%2 == 1):
				note(&s.mixed, "of two changes")
			}
			if k != last {
				s.moved++
				last = k
			}
		}
	}
	return s
}
