package storetest

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/storeload"
	"tare/test/meshmodel"
)

// The child's part of the test of kills: the variables say which variant, where it pins, and from which change on it
// goes.
const (
	childVariant = "TARE_STORE_TEST_VARIANT"
	childPins    = "TARE_STORE_TEST_PINS"
	childFrom    = "TARE_STORE_TEST_FROM"
)

// child, in the process that is to be killed, applies changes until it is, and tells the parent of each when it begins
// and when it has done.
func (s *suite) child() {
	from, err := strconv.Atoi(os.Getenv(childFrom))
	if err == nil {
		err = s.writeUntilKilled(from)
	}
	fmt.Fprintln(os.Stderr, "storetest: the writer that was to be killed:", err)
	os.Exit(3)
}

func (s *suite) writeUntilKilled(from int) error {
	o := s.small()
	o.PinDir = os.Getenv(childPins)
	st, err := s.design.Open(o)
	if err != nil {
		return err
	}
	g := newGenerator(seed)
	for range from {
		g.next()
	}
	if !s.design.Survives { // what the store had went with its writer
		if _, err := st.Apply(context.Background(), meshmodel.All(g.config)); err != nil {
			return err
		}
	}
	var b [8]byte
	tell := func(n int) {
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		os.Stdout.Write(b[:])
	}
	tell(2 * from) // ready
	for k := from; ; k++ {
		change := g.next()
		tell(2*k + 1) // begins
		if _, err := st.Apply(context.Background(), change); err != nil {
			return fmt.Errorf("change %d: %w", k, err)
		}
		tell(2*k + 2) // is done
	}
}

// kills has a writer in another process killed at random points, again and again over the same pins, and looks each
// time at what it left: programs that have the maps go on answering; a store that survives is taken over as it was; one
// that does not can be opened and filled again.
func (s *suite) kills(t *testing.T) {
	pins := needsBPFFS(t)
	random := rand.New(rand.NewPCG(seed, 1))
	g := newGenerator(seed)
	applied, broken := 0, 0
	kills := 0
	for b := s.budget(8, 2*time.Second); kills < 25 && b.more(); kills++ {
		done, begun := s.killOne(t, pins, applied, time.Duration(random.Int64N(int64(40*time.Millisecond))))
		for ; applied < done; applied++ {
			g.next()
		}
		before := g.config
		if begun > done { // it was killed in the middle of a change
			broken++
			g.next()
			applied++
		}
		o := s.small()
		o.PinDir = pins
		st, err := s.design.Open(o)
		if err != nil {
			t.Fatalf("kill %d, after change %d: %v", kills, done, err)
		}
		ask, err := storeload.LoadAsk(s.design, st.Maps())
		if err != nil {
			t.Fatal(err)
		}
		if s.design.Survives {
			s.left(t, st, ask, before, g.config, kills)
		}
		// Whatever was left: with all applied, it is right.
		change := meshmodel.All(g.config)
		for name := range before.Clusters {
			if g.config.Clusters[name] == nil {
				change.RemovedClusters = append(change.RemovedClusters, name)
			}
		}
		for name := range before.Listeners {
			if g.config.Listeners[name] == nil {
				change.RemovedListeners = append(change.RemovedListeners, name)
			}
		}
		if _, err := st.Apply(context.Background(), change); err != nil {
			t.Fatalf("kill %d: applying all again: %v", kills, err)
		}
		c := &checker{store: st, ask: ask, config: g.config}
		c.clusters(t)
		questions := newGenerator(uint64(kills))
		for range 200 {
			c.question(t, questions.question(), 8)
		}
		ask.Close()
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d of them in the middle of a change, %d changes in all", kills, broken, applied)
}

// left looks at a store that was taken over, after a kill while it was changed from one configuration to another.
func (s *suite) left(t *testing.T, st store.Store, ask *Asker, before, after *mesh.Config, kill int) {
	t.Helper()
	questions := newGenerator(uint64(1000 + kill))
	old, now := 0, 0
	for range 300 {
		q := questions.question()
		one, two := meshmodel.Find(before, q), meshmodel.Find(after, q)
		same := sameAnswer(one, two)
		for range 8 {
			got := ask.Ask(q, questions.random.Uint64())
			isOld, isNew := s.possible(st, one, got), s.possible(st, two, got)
			switch {
			case !isOld && !isNew && (same || s.design.Atomic != store.PerResource):
				t.Fatalf("kill %d: %v: the store says %v to %v of cluster %d; before the last change %+v, after it %+v", kill,
					text(q), got.Verdict, got.Endpoint, got.Cluster, one, two)
			case isOld && !isNew:
				old++
			case isNew && !isOld:
				now++
			}
		}
	}
	if s.design.Atomic == store.PerChange && old > 0 && now > 0 {
		t.Fatalf("kill %d: %d answers are of before the last change, %d of after it", kill, old, now)
	}
}

// possible says whether an answer is one that the model gives. A cluster that is not there any more is known by its
// endpoints only.
func (s *suite) possible(st store.Store, want meshmodel.Answer, got Answer) bool {
	if got.Verdict != mesh.Accept {
		sum := 0.0
		for _, p := range want.Parts {
			sum += p
		}
		return got.Verdict == want.Verdict || got.Verdict == mesh.Refuse && want.Verdict == mesh.Accept && sum < 1-1e-9
	}
	for d := range want.Parts {
		if id, ok := st.Cluster(d.Cluster); d.Endpoint == got.Endpoint && (!ok || id == got.Cluster) {
			return true
		}
	}
	return false
}

func sameAnswer(a, b meshmodel.Answer) bool {
	if a.Verdict != b.Verdict || len(a.Parts) != len(b.Parts) {
		return false
	}
	for d := range a.Parts {
		if _, ok := b.Parts[d]; !ok {
			return false
		}
	}
	return true
}

// killOne starts a writer, lets it write for a while, and kills it. It gives how many changes it had done, and how many
// it had begun.
func (s *suite) killOne(t *testing.T, pins string, from int, after time.Duration) (done, begun int) {
	t.Helper()
	top, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+regexp.QuoteMeta(top)+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), childVariant+"="+s.variant, childPins+"="+pins, fmt.Sprintf("%s=%d", childFrom, from))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done, begun = from, from
	var b [8]byte
	r := bufio.NewReader(out)
	next := func() bool {
		for n := range b {
			c, err := r.ReadByte()
			if err != nil {
				return false
			}
			b[n] = c
		}
		v := int(binary.LittleEndian.Uint64(b[:]))
		if v%2 == 0 {
			done, begun = v/2, v/2
		} else {
			begun = v/2 + 1
		}
		return true
	}
	if !next() {
		cmd.Wait()
		t.Fatalf("the writer did not start: %s", complaint.String())
	}
	timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
	defer timer.Stop()
	for next() {
	}
	if err := cmd.Wait(); !strings.Contains(fmt.Sprint(err), "killed") {
		t.Fatalf("the writer ended by itself: %v %s", err, complaint.String())
	}
	return done, begun
}

// restart closes a store and opens it again, with the same pins and without.
func (s *suite) restart(t *testing.T) {
	o := s.small()
	o.PinDir = needsBPFFS(t)
	g := newGenerator(seed + 1)
	st, err := s.design.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	for range s.least(25) {
		apply(t, st, g.next())
	}
	ask, err := storeload.LoadAsk(s.design, st.Maps())
	if err != nil {
		t.Fatal(err)
	}
	defer ask.Close()
	c := &checker{store: st, ask: ask, config: g.config}
	c.clusters(t)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if s.design.Survives {
		// Nobody holds the store now, but the program has its maps. Numbers of clusters are those from before.
		c.store = numbers(c.ids)
		for range 100 {
			c.question(t, g.question(), 8)
		}
	}
	st, err = s.design.Open(o)
	if err != nil {
		t.Fatalf("opening it again: %v", err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	c.store = st
	if c.ask, err = storeload.LoadAsk(s.design, st.Maps()); err != nil {
		t.Fatal(err)
	}
	defer c.ask.Close()
	if !s.design.Survives {
		c.ids = nil
		apply(t, st, meshmodel.All(g.config))
	}
	for range s.least(25) {
		c.clusters(t)
		for range 100 {
			c.question(t, g.question(), 8)
		}
		apply(t, st, g.next())
		c.config = g.config
	}
}

// numbers are those of clusters, for a checker without a store.
type numbers map[string]uint32

func (n numbers) Cluster(name string) (uint32, bool) {
	id, ok := n[name]
	return id, ok
}
