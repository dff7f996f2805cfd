package snapshot

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/storeload"
	"tare/test/storetest"
)

func TestConformance(t *testing.T) { storetest.Conformance(t, Design) }

func Benchmark(b *testing.B) { storetest.Benchmarks(b, Design) }

func opened(t testing.TB, o store.Options) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	opened, err := open(o)
	if err != nil {
		t.Fatal(err)
	}
	s := opened.(*Store)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// slowAsker returns an Asker that queries s with a program that pauses for the given number of steps, of some
// nanoseconds each. It also returns a function that reads two counts of the program: how often it has begun to pause,
// and how often it has gone on.
func slowAsker(t testing.TB, s *Store, steps uint32) (*storeload.Asker, func() (stopped, wentOn uint64)) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs: a program that stands still and one who does not wait for it")
	}
	d := Design
	spec, err := loadSlow()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["steps"].Set(steps); err != nil {
		t.Fatal(err)
	}
	d.Ask = func() (*ebpf.CollectionSpec, error) { return spec, nil }
	spec.Maps[".bss"].Flags |= unix.BPF_F_MMAPABLE
	counts, err := ebpf.NewMap(spec.Maps[".bss"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	maps := s.Maps()
	maps[".bss"] = counts
	a, err := storeload.LoadAsk(d, maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	memory, err := counts.Memory()
	if err != nil {
		t.Fatal(err)
	}
	stopped, wentOn := spec.Variables["stopped"].Offset, spec.Variables["went_on"].Offset
	return a, func() (uint64, uint64) {
		b := make([]byte, memory.Size())
		if _, err := memory.ReadAt(b, 0); err != nil {
			t.Error(err)
		}
		return binary.NativeEndian.Uint64(b[stopped:]), binary.NativeEndian.Uint64(b[wentOn:])
	}
}

// TestGrace pauses a program, and waits for it.
func TestGrace(t *testing.T) {
	s := opened(t, small)
	mustApply(t, s, mesh.Change{Listeners: []*mesh.Listener{testListener("l", at(1), "a")}})
	a, counts := slowAsker(t, s, 1<<23)
	met := 0
	for i := uint64(0); met < 3 && i < 100; i++ {
		var done sync.WaitGroup
		done.Go(func() { a.Ask(mesh.Question{To: at(1), Protocol: mesh.TCP}, 0) })
		stopped, wentOn := counts()
		for stopped == i {
			stopped, wentOn = counts()
		}
		if stopped > wentOn {
			met++
		}
		s.grace.start()
		if err := s.grace.wait(); err != nil {
			t.Fatal(err)
		}
		if _, wentOn := counts(); wentOn < stopped {
			t.Errorf("%d programs had begun when the wait began, and %d had ended when it ended", stopped, wentOn)
		}
		done.Wait()
	}
	if met == 0 {
		t.Error("no program ran when a wait began: the test wants some")
	}
}

// version returns the i-th version of a configuration: every number in it identifies the version.
func version(i uint32) mesh.Change {
	c := testCluster("a", at(int(i)), at(int(i)), at(int(i)))
	c.Breakers.MaxConnections = i
	return mesh.Change{Clusters: []*mesh.Cluster{c}, Listeners: []*mesh.Listener{testListener("l", at(1), "a")}}
}

// overtake applies one version after the other while slow programs query the store, until enough returns true. It
// returns the number of the programs' answers, how many of them are wrong (of no version, or of one that was outdated
// when the query began), and how many came from programs during whose query at least two newer versions were applied.
func overtake(t *testing.T, s *Store, enough func(answers, wrong int) bool) (answers, wrong, overtaken int) {
	a, _ := slowAsker(t, s, 1<<18)
	mustApply(t, s, version(1))
	var stop atomic.Bool
	var applied atomic.Uint32
	var readers sync.WaitGroup
	var mu sync.Mutex
	for range 2 {
		reader := a.Another()
		readers.Go(func() {
			for !stop.Load() {
				first := applied.Load()
				got := reader.Ask(mesh.Question{To: at(1), Protocol: mesh.TCP}, 1<<40)
				i := got.MaxConnections
				mu.Lock()
				answers++
				if got.Verdict != mesh.Accept || got.Endpoint != at(int(i)) || got.Generation != uint64(i) || i < first {
					wrong++
				}
				if applied.Load() > i+1 {
					overtaken++
				}
				mu.Unlock()
			}
		})
	}
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return enough(answers, wrong)
	}
	for i := uint32(2); i < 1<<24 && !done(); i++ {
		mustApply(t, s, version(i))
		applied.Store(i)
	}
	stop.Store(true)
	readers.Wait()
	return answers, wrong, overtaken
}

// TestOvertaken makes so many changes while programs are paused that all memory is reused repeatedly, and checks that
// each program sees one complete version.
func TestOvertaken(t *testing.T) {
	s := opened(t, small)
	answers, wrong, overtaken := overtake(t, s, func(answers, _ int) bool { return answers >= 300 })
	if wrong > 0 || overtaken == 0 {
		t.Errorf("of %d answers %d were of no version; %d programs were overtaken", answers, wrong, overtaken)
	}
	s.sound(t)
	t.Logf("%d changes, %d answers, %d programs overtaken", s.generation, answers, overtaken)
}

// TestHasty does what TestOvertaken does with a store that does not wait for programs, to show that TestOvertaken would
// notice.
func TestHasty(t *testing.T) {
	s := opened(t, small)
	if err := s.grace.close(); err != nil {
		t.Fatal(err)
	}
	s.grace = &instant{}
	// On a busy machine a writer that gets little time overtakes few.
	answers, wrong, _ := overtake(t, s, func(answers, wrong int) bool {
		return answers >= 300 && wrong > 0 ||
			answers >= 30_000
	})
	if wrong == 0 {
		t.Errorf("nobody was waited for, and all of %d answers were right", answers)
	}
	t.Logf("%d of %d answers were of no version", wrong, answers)
}

// TestCloseWhileApplying closes a store that is in use.
func TestCloseWhileApplying(t *testing.T) {
	for range 20 {
		s := opened(t, small)
		var writer sync.WaitGroup
		began := make(chan struct{})
		writer.Go(func() {
			for i := uint32(0); ; i++ {
				if _, err := s.Apply(context.Background(), version(i)); err != nil {
					return
				}
				if i == 100 {
					close(began)
				}
			}
		})
		<-began
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		writer.Wait()
	}
}

// BenchmarkQuantiles measures quantiles of the time of one change: they show waits that the mean hides.
func BenchmarkQuantiles(b *testing.B) {
	s := opened(b, store.Options{})
	const n = 1000
	var clusters, listeners [n]mesh.Change
	for i := range n {
		clusters[i].Clusters = []*mesh.Cluster{storetest.ClusterLoad(i % 100)}
		listeners[i].Listeners = []*mesh.Listener{storetest.ListenerLoad(i % 100)}
	}
	for name, changes := range map[string]*[n]mesh.Change{"cluster": &clusters, "listener": &listeners} {
		for pace, pause := range map[string]time.Duration{"full": 0, "paced": 20 * time.Microsecond} {
			b.Run(name+"/"+pace, func(b *testing.B) {
				var took []time.Duration
				for i := 0; b.Loop(); i++ {
					begin := time.Now()
					mustApply(b, s, changes[i%n])
					took = append(took, time.Since(begin))
					for pause > 0 && time.Since(begin) < pause {
					}
				}
				slices.Sort(took)
				for q, name := range map[float64]string{0.5: "p50-ns", 0.99: "p99-ns", 0.999: "p99.9-ns", 1: "max-ns"} {
					b.ReportMetric(float64(took[min(len(took)-1, int(q*float64(len(took))))]), name)
				}
			})
		}
	}
}

// BenchmarkAll measures changes of 5000 services of 20 endpoints: all added at once, and all replaced at once.
func BenchmarkAll(b *testing.B) {
	const services, endpoints = 5000, 20
	changes := [2]mesh.Change{storeload.Services(services, endpoints), storeload.Services(services, endpoints)}
	for _, c := range changes[1].Clusters {
		for i := range c.Localities[0].Endpoints {
			e := &c.Localities[0].Endpoints[i]
			e.Address = netip.AddrPortFrom(e.Address.Addr(), 9090)
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s, err := open(store.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			mustApply(b, s.(*Store), changes[0])
			b.StopTimer()
			s.Close()
			b.StartTimer()
		}
	})
	b.Run("replace", func(b *testing.B) {
		s := opened(b, store.Options{})
		mustApply(b, s, changes[0])
		for i := 1; b.Loop(); i++ {
			mustApply(b, s, changes[i%2])
		}
		b.ReportMetric(float64(s.work.GracePeriods), "grace-periods")
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			s, err := open(store.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			s.Close()
			b.StartTimer()
		}
	})
	b.Run("read", func(b *testing.B) {
		s := opened(b, store.Options{})
		mustApply(b, s, changes[0])
		for b.Loop() {
			s.read()
		}
	})
	b.Run("lookup", func(b *testing.B) {
		s := opened(b, store.Options{})
		mustApply(b, s, changes[0])
		a := storetest.NewAsker(b, Design, s)
		for name, q := range map[string]mesh.Question{
			"served":     {To: storeload.ServiceOf(4000), Protocol: mesh.TCP},
			"not-served": {To: at(77), Protocol: mesh.TCP},
		} {
			sum, n := 0.0, 0
			for range 100 {
				sum += float64(a.Repeat(q, uint64(n)<<26|uint64(n)<<56, 1000))
				n++
			}
			b.ReportMetric(sum/float64(n), fmt.Sprintf("%s-ns", name))
		}
		for b.Loop() {
		}
	})
}
