package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/test/meshmodel"
)

// Conformance compares a design, in each of its variants, with the model, and checks what it promises.
func Conformance(t *testing.T, d store.Design) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	variants := d.Variants
	if len(variants) == 0 {
		variants = []string{""}
	}
	for i, variant := range variants {
		s := &suite{design: d, variant: variant, share: 1}
		if i > 0 { // they have most in common with the first
			s.share = 0.4
		}
		if testing.Short() {
			s.share, s.slow = s.share/10, true
		}
		name := variant
		if name == "" {
			name = "only"
		}
		t.Run(name, func(t *testing.T) {
			t.Run("Verified", s.verified)
			t.Run("Loads", s.loads)
			t.Run("Verdicts", s.verdicts)
			t.Run("Numbers", s.numbers)
			t.Run("Named", s.named)
			t.Run("Model", s.model)
			t.Run("Refusals", long(s.refusals))
			t.Run("Large", long(s.large))
			t.Run("Growth", long(s.growth))
			t.Run("Returned", long(s.returned))
			t.Run("Waits", s.waits)
			t.Run("Storm", s.storm)
			t.Run("Closed", s.closed)
		})
	}
}

// closed closes a store during a change, as Store allows, and twice. Later changes are refused.
func (s *suite) closed(t *testing.T) {
	opened, err := s.design.Open(store.Options{Variant: s.variant})
	if err != nil {
		t.Fatal(err)
	}
	change := func(i int) mesh.Change { return mesh.Change{Clusters: []*mesh.Cluster{ClusterLoad(i % 100)}} }
	apply(t, opened, change(0))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var err error
		for i := 1; err == nil; i++ { // until the store is closed
			_, err = opened.Apply(context.Background(), change(i))
		}
	}()
	for range 2 {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
	<-ended
}

// Outline runs those parts of Conformance that make few changes, for a design that is too slow for all of it.
func Outline(t *testing.T, d store.Design) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := &suite{design: d, share: 0.4}
	if len(d.Variants) > 0 {
		s.variant = d.Variants[0]
	}
	t.Run("Verified", s.verified)
	t.Run("Loads", long(s.loads))
	t.Run("Waits", long(s.waits))
}

// long leaves a part out of short runs, which are those on emulated processors with other kernels, because the part
// depends little on the kernel or takes long.
func long(part func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) {
		if testing.Short() {
			t.Skip("needs more time than a short run has")
		}
		part(t)
	}
}

// suite is Conformance for one variant of a design.
type suite struct {
	design  store.Design
	variant string
	share   float64 // of the time that the suite takes for the first variant
	slow    bool    // a change takes hundreds of milliseconds, so least() is smaller
}

// budget bounds the work of a part of the suite by time, since some designs wait milliseconds for each record. It
// decides how much is done, never whether it passes.
func (s *suite) budget(least int, d time.Duration) *budget {
	return &budget{end: time.Now().Add(time.Duration(s.share * float64(d))), least: s.least(least)}
}

// least returns how many steps must be done, however long they take: n, or an eighth of it if the design is slow.
func (s *suite) least(n int) int {
	if s.slow {
		return max(1, n/8)
	}
	return n
}

// small returns options with room for what generator makes, even in designs that divide the room by sizes. Designs that
// make everything at their start are quick with it.
func (s *suite) small() store.Options {
	return store.Options{MaxClusters: 64, MaxListeners: 64, MaxEndpoints: 2048, Variant: s.variant}
}

func (s *suite) open(t testing.TB, o store.Options) store.Store {
	t.Helper()
	opened, err := s.design.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Errorf("closing the store: %v", err)
		}
	})
	return opened
}

func apply(t testing.TB, s store.Store, change mesh.Change) store.Work {
	t.Helper()
	work, err := s.Apply(context.Background(), change)
	if err != nil {
		t.Fatalf("applying %s: %v", describe(change), err)
	}
	return work
}

func describe(c mesh.Change) string {
	return fmt.Sprintf("%d clusters, %d listeners, %d and %d removed", len(c.Clusters), len(c.Listeners),
		len(c.RemovedClusters), len(c.RemovedListeners))
}

// loads checks the store's answers for the two resources of the benchmarks, ClusterLoad and ListenerLoad.
func (s *suite) loads(t *testing.T) {
	st := s.open(t, s.small())
	ask := NewAsker(t, s.design, st)
	config := mesh.NewConfig()
	for i := range 3 {
		change := mesh.Change{Clusters: []*mesh.Cluster{ClusterLoad(i)}, Listeners: []*mesh.Listener{ListenerLoad(i)}}
		config.Apply(change)
		start := time.Now()
		work := apply(t, st, change)
		s.slow = time.Since(start) > 100*time.Millisecond
		t.Logf("a cluster and a listener: %+v", work)
		if work.Records == 0 || work.Bytes == 0 {
			t.Errorf("a cluster and a listener took %+v: is the work counted?", work)
		}
	}
	c := &checker{store: st, ask: ask, config: config}
	n := 4000
	if testing.Short() {
		n = 1000 // the smallest number with which the method question compares parts
	}
	for i := range 4 { // there is no listener at the last address
		c.question(t, mesh.Question{To: ServiceAddress(i), Protocol: mesh.TCP}, n)
	}
}

// checker compares what the kernel answers with the model.
type checker struct {
	store interface {
		Cluster(name string) (uint32, bool)
	}
	ask    *Asker
	config *mesh.Config
	random rand.PCG
	ids    map[string]uint32
	asked  [4]int // by verdict
}

// mostVerified is the largest number of instructions that the verifier may process for a look-up. Data planes have one
// look-up in each of several programs, and are ready when the verifier has been through all of them. It takes about 20
// ms for this number, and twenty times as long on an emulated processor.
const mostVerified = 30_000

// verified checks how much the verifier has to do to load the look-up.
func (s *suite) verified(t *testing.T) {
	n, ok := NewAsker(t, s.design, s.open(t, s.small())).Verified()
	if !ok {
		t.Skip("needs Linux 5.16, which says how much it verified")
	}
	if n > mostVerified {
		t.Errorf("the verifier looked at %d instructions, at most %d are wanted", n, mostVerified)
	}
}

// question asks n times, each time with another random number, and checks verdicts, endpoints and, if n is at least
// 1000, the parts of the endpoints. If the verdict is not Accept, it asks 8 times at most.
func (c *checker) question(t testing.TB, q mesh.Question, n int) {
	t.Helper()
	want := meshmodel.Find(c.config, q)
	counts := map[meshmodel.Destination]int{}
	names := map[uint32]string{}
	rest := 1.0
	for d, part := range want.Parts {
		rest -= part
		if id, ok := c.store.Cluster(d.Cluster); ok {
			names[id] = d.Cluster
		}
	}
	for i := 0; i < n; i++ {
		got := c.ask.Ask(q, c.random.Uint64())
		c.asked[got.Verdict&3]++
		if got.Verdict == mesh.Refuse && want.Verdict == mesh.Accept && rest > 1e-9 {
			counts[meshmodel.Destination{}]++
			continue
		}
		if got.Verdict != want.Verdict {
			t.Fatalf("%v: the store says %v, the model %v", text(q), got.Verdict, want.Verdict)
		}
		if got.Verdict != mesh.Accept {
			if got.Cluster != store.NoCluster && (got.Verdict != mesh.Refuse || !c.numbered(got.Cluster)) {
				t.Fatalf("%v: the store says %v of cluster %d", text(q), got.Verdict, got.Cluster)
			}
			if n > 8 { // the answer does not depend on random numbers
				n = 8
			}
			continue
		}
		d := meshmodel.Destination{Cluster: names[got.Cluster], Endpoint: got.Endpoint}
		if _, ok := want.Parts[d]; !ok {
			t.Fatalf("%v: the store says %v of cluster %d (%q), which is none of the model's %v", text(q), got.Endpoint,
				got.Cluster, d.Cluster, want.Parts)
		}
		if limit := c.config.Clusters[d.Cluster].Breakers.MaxConnections; got.MaxConnections != limit {
			t.Fatalf("%v: the store says at most %d connections to %s, the model %d", text(q), got.MaxConnections,
				d.Cluster, limit)
		}
		counts[d]++
	}
	if want.Verdict == mesh.Accept && n >= 1000 {
		if rest > 1e-9 {
			want.Parts[meshmodel.Destination{}] = rest
		}
		chiSquare(t, q, counts, want.Parts, n)
	}
}

// numbered reports whether a cluster has the number.
func (c *checker) numbered(id uint32) bool {
	for name := range c.config.Clusters {
		if got, ok := c.store.Cluster(name); ok && got == id {
			return true
		}
	}
	return false
}

// chiSquare fails the test if the probability of counts that deviate as much as these is below one in a million. All
// destinations that are expected less than 5 times count as one, or are left out if even together they are expected
// less than once.
func chiSquare(t testing.TB, q mesh.Question, counts map[meshmodel.Destination]int,
	parts map[meshmodel.Destination]float64, n int) {
	t.Helper()
	sum, rare, rareWant, cells := 0.0, 0.0, 0.0, 0
	add := func(got, want float64) {
		sum += (got - want) * (got - want) / want
		cells++
	}
	for d, part := range parts {
		got, want := float64(counts[d]), part*float64(n)
		if want < 5 {
			rare += got
			rareWant += want
			continue
		}
		add(got, want)
	}
	if rareWant >= 1 {
		add(rare, rareWant)
	}
	if cells < 2 {
		return
	}
	if p := (distuv.ChiSquared{K: float64(cells - 1)}).Survival(sum); p < 1e-6 {
		t.Errorf("%v: parts of %d connections are wrong (chi-square %.1f with %d degrees of freedom, p = %.1g): counted "+
			"%v, want parts %v", text(q), n, sum, cells-1, p, counts, parts)
	}
}

// clusters checks the numbers of clusters: each existing cluster has one, which no other has, and keeps it as long as
// it exists.
func (c *checker) clusters(t testing.TB) {
	t.Helper()
	now := map[string]uint32{}
	owner := map[uint32]string{}
	for name := range c.config.Clusters {
		id, ok := c.store.Cluster(name)
		if !ok {
			t.Fatalf("cluster %s is there, but has no number", name)
		}
		if other, ok := owner[id]; ok {
			t.Fatalf("clusters %s and %s have the same number %d", name, other, id)
		}
		if before, ok := c.ids[name]; ok && before != id {
			t.Fatalf("cluster %s had number %d, and has %d now", name, before, id)
		}
		now[name], owner[id] = id, name
	}
	for i := range clusterNames {
		name := fmt.Sprintf("cluster-%d", i)
		if _, ok := c.store.Cluster(name); ok && c.config.Clusters[name] == nil {
			t.Fatalf("cluster %s is gone, but has a number", name)
		}
	}
	c.ids = now
}

func text(q mesh.Question) string {
	from := "unknown"
	if q.From.IsValid() {
		from = q.From.String()
	}
	return fmt.Sprintf("%s from %s to %s", q.Protocol, from, q.To)
}

// budget allows work until a time, but at least a number of steps.
type budget struct {
	end   time.Time
	least int
	done  int
}

// more counts a step, and reports whether it may be done.
func (b *budget) more() bool {
	b.done++
	return b.done <= b.least || time.Now().Before(b.end)
}

const seed = 20240513

// model applies random changes, and asks questions after each.
func (s *suite) model(t *testing.T) {
	st := s.open(t, s.small())
	ask := NewAsker(t, s.design, st)
	g := newGenerator(seed)
	c := &checker{store: st, ask: ask}
	steps := 0
	for b := s.budget(32, 1500*time.Millisecond); steps < 3000 && b.more(); steps++ {
		change := g.next()
		apply(t, st, change)
		c.config = g.config
		c.clusters(t)
		for _, l := range change.Listeners {
			if !l.Address.Addr().IsUnspecified() {
				c.question(t, mesh.Question{To: l.Address, Protocol: l.Protocol}, 16)
			}
		}
		for range 24 {
			c.question(t, g.question(), 12)
		}
		if steps%8 == 7 { // are the parts right?
			for range 4 {
				c.question(t, g.question(), 3000)
			}
		}
		if t.Failed() {
			t.Fatalf("at change %d of seed %d", steps, seed)
		}
	}
	// Remove everything: nothing may be left.
	change := mesh.Change{}
	for name := range g.config.Clusters {
		change.RemovedClusters = append(change.RemovedClusters, name)
	}
	for name := range g.config.Listeners {
		change.RemovedListeners = append(change.RemovedListeners, name)
	}
	slices.Sort(change.RemovedClusters)
	slices.Sort(change.RemovedListeners)
	apply(t, st, change)
	c.config = mesh.NewConfig()
	c.clusters(t)
	for range 100 {
		c.question(t, g.question(), 1)
	}
	t.Logf("seed %d: %d changes; answers: %d pass, %d accept, %d refuse, %d deny", seed, steps, c.asked[0], c.asked[1],
		c.asked[2], c.asked[3])
	for verdict, n := range c.asked {
		if n == 0 && steps >= 30 {
			t.Errorf("no answer was %v: the test must see every verdict", mesh.Verdict(verdict))
		}
	}
}

// usage reports whether err is a usage error about one of the given resources.
func usage(err error, where ...string) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Code == fault.Usage && slices.Contains(where, f.Where)
}
