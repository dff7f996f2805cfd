package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
	"tare/test/busy"
	"tare/test/long"
)

// TestAgentChurn: while control groups and eBPF programs come and go, sums never fall, nothing is counted twice, and
// the agent's memory and number of open descriptors do not grow.
func TestAgentChurn(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	rest, _ := groups.make(t, "rest")
	w := startWorker(t, rest)
	a := startAgent(t).serving(t)

	made, loaded := 0, 0
	var kept []*ebpf.Program
	var last *scrape
	// churn makes and removes n groups, each of which uses CPU time, and loads a program for every fifth of them.
	churn := func(n int, every time.Duration) {
		for range n {
			began := time.Now()
			made++
			outer := filepath.Join(groups.top, fmt.Sprintf("churn-%d", made))
			inner := filepath.Join(outer, "in")
			if err := os.MkdirAll(inner, 0o755); err != nil {
				t.Fatal(err)
			}
			w.move(t, inner)
			w.burn(t, 2*time.Millisecond)
			if made%5 == 0 {
				loaded++
				p, err := busy.Load(fmt.Sprintf("churn_%d", loaded))
				if err != nil {
					t.Fatal(err)
				}
				info, err := p.Info()
				if err != nil {
					t.Fatal(err)
				}
				id, _ := info.ID()
				w.do(t, "run %d 200", id)
				w.do(t, "close %d", id)
				kept = append(kept, p)
			}
			if len(kept) > 4 {
				kept[0].Close()
				kept = kept[1:]
			}
			w.move(t, rest)
			removeTestGroups(t, outer)
			if made%25 == 0 {
				now := a.scraped(t)
				now.check(t, last)
				last = now
			}
			time.Sleep(every - time.Since(began))
		}
	}
	defer func() {
		for _, p := range kept {
			p.Close()
		}
	}()
	settled := func() (memory int64, files int) {
		now := a.scraped(t)
		now.check(t, last)
		last = now
		memory, _ = resident(t, a.pid)
		return memory, descriptors(t, a.pid)
	}
	churn(long.Repeat(75, 500), 0) // warming up, because memory grows for the first groups
	memory, files := settled()
	if long.Enabled() {
		groupsPeak(t, groups, settled)
	}
	began, cost := time.Now(), last.total("tare_agent_cpu_seconds_total")
	if long.Enabled() {
		for until := time.Now().Add(agentFor(t)); time.Now().Before(until); {
			churn(50, 30*time.Millisecond) // with the scrapes, 1,000 a minute and 200 programs
			if made%1000 == 0 {
				now, _ := resident(t, a.pid)
				t.Logf("%v: %d groups, %d programs, %d KiB, %d descriptors, %.2f %% of a CPU", time.Since(began).Round(time.Second),
					made, loaded, now>>10, descriptors(t, a.pid),
					100*(last.total("tare_agent_cpu_seconds_total")-cost)/time.Since(began).Seconds())
			}
		}
	} else {
		churn(125, 0)
	}
	// The agent forgets what is gone when it looks for groups, every ten seconds.
	var nowMemory int64
	var nowFiles int
	for until := time.Now().Add(20 * time.Second); ; {
		nowMemory, nowFiles = settled()
		if nowFiles <= files || time.Now().After(until) {
			break
		}
	}
	t.Logf("%d groups, %d programs: %d and then %d KiB resident, %d and then %d descriptors", made, loaded, memory>>10,
		nowMemory>>10, files, nowFiles)
	sameMemory(t, "after the churn", memory, nowMemory)
	if most := int64(25 << 20); nowMemory > most {
		t.Errorf("%d KiB are resident, more than %d", nowMemory>>10, most>>10)
	}
	// Others on the machine make groups as well.
	if nowFiles > files+20 {
		t.Errorf("%d descriptors are open, and %d were before", nowFiles, files)
	}
}

// sameMemory checks that an agent has at most 4 MiB more resident memory than before; both values are in bytes. The
// garbage collector lets the heap grow by half of what is in use, which is a few MB.
func sameMemory(t *testing.T, when string, before, now int64) {
	t.Helper()
	if now > before+4<<20 {
		t.Errorf("%s %d KiB are resident, and %d were before", when, now>>10, before>>10)
	}
}

// groupsPeak makes thousands of groups that are there at the same time, and removes them.
func groupsPeak(t *testing.T, groups *testGroups, settled func() (memory int64, files int)) {
	t.Helper()
	before, _ := settled()
	top, _ := groups.make(t, "peak")
	for i := range 3000 {
		groups.make(t, fmt.Sprintf("peak/%d", i))
	}
	var most int64
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); { // groups are looked for every ten seconds
		now, _ := settled()
		most = max(most, now)
	}
	removeTestGroups(t, top)
	now := most
	for until := time.Now().Add(5 * time.Minute); now > before+4<<20 && time.Now().Before(until); {
		now, _ = settled()
	}
	t.Logf("3,000 groups more for half a minute: %d, at most %d, and then %d KiB resident", before>>10, most>>10, now>>10)
	if most < before+2<<20 {
		t.Errorf("3,000 groups made no difference to memory: %d KiB, and %d before", most>>10, before>>10)
	}
	sameMemory(t, "after a peak of groups", before, now)
}

// TestAgentStarved: in an agent that gets so little CPU time that it reads the counters far apart, the lines of the CPU
// budget still add up to the capacity, and each group is charged what it used.
func TestAgentStarved(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	var dirs, paths []string
	var workers []*worker
	for i := range 2 {
		dir, path := groups.make(t, fmt.Sprintf("busy-%d", i))
		dirs, paths = append(dirs, dir), append(paths, path)
		workers = append(workers, startWorker(t, dir))
	}
	for i := range 200 { // reading these takes the agent milliseconds
		groups.make(t, fmt.Sprintf("idle-%d", i))
	}
	a := startAgent(t).serving(t)
	usage := func() []int64 { return lists.Map(dirs, func(dir string) int64 { return groupUsage(t, dir) }) }
	earliest := usage()
	last := a.scraped(t)
	first, latest := last, usage()

	end, ended := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-end:
				ended <- unix.Kill(a.pid, unix.SIGCONT)
				return
			default:
			}
			_ = unix.Kill(a.pid, unix.SIGSTOP)
			time.Sleep(100 * time.Millisecond)
			_ = unix.Kill(a.pid, unix.SIGCONT)
			time.Sleep(300 * time.Microsecond)
		}
	}()
	most := 0.0
	scrapes := []string{first.said("tare_agent_ticks_total", paths...)}
	for range long.Repeat(5, 30) {
		for i, w := range workers {
			if _, err := fmt.Fprintf(w.in, "burn %d\n", 200_000*(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		now := a.scraped(t)
		now.check(t, last)
		last = now
		most = max(most, now.total("tare_node_cpu_ahead_seconds"))
		scrapes = append(scrapes, now.said("tare_agent_ticks_total", paths...))
		for _, w := range workers {
			if !w.lines.Scan() {
				t.Fatal("a worker ended: ", w.lines.Err())
			}
		}
	}
	close(end)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	least := usage()
	now := a.scraped(t)
	now.check(t, last)
	after := usage()
	if gap := now.total("tare_agent_gap_seconds_total"); gap > 0 {
		t.Errorf("%v s are not covered", gap)
	}
	for i, path := range paths {
		was, _ := first.sum("tare_group_cpu_seconds_total", "cgroup", path)
		is, _ := now.sum("tare_group_cpu_seconds_total", "cgroup", path)
		got, low, high := nanoseconds(is)-nanoseconds(was), least[i]-latest[i], after[i]-earliest[i]
		if got < low || got > high {
			t.Errorf("%s has used %d ns, want %d to %d; readings, and seconds of the groups in each:\n%s\n%s", path, got, low,
				high, strings.Join(scrapes, "\n"), now.said("tare_agent_ticks_total", paths...))
		}
	}
	t.Logf("the lines were at most %.3f s ahead; %.3f s are counted twice", most,
		now.total("tare_node_cpu_counted_twice_seconds_total"))
}

// said returns the value of a metric and the CPU seconds of groups, as text for a failure.
func (s *scrape) said(metric string, groups ...string) string {
	text := fmt.Sprint(s.total(metric))
	for _, path := range groups {
		used, _ := s.sum("tare_group_cpu_seconds_total", "cgroup", path)
		text += fmt.Sprintf(" %.6f", used)
	}
	return text
}

// TestAgentStopped: the totals of an agent that was stopped for a while include what was used meanwhile, and it counts
// the programs that came and went.
func TestAgentStopped(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	dir, path := groups.make(t, "busy")
	w := startWorker(t, dir)
	planted := plantPrograms(t, 1)[0]
	a := startAgent(t).serving(t)
	first := a.scraped(t)
	used, _ := planted.stats(t)
	before := groupUsage(t, dir)

	if err := unix.Kill(a.pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	const unseen = 5
	for range unseen {
		p, err := busy.Load("unseen")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
	}
	for range long.Repeat(2, 60) {
		w.burn(t, 100*time.Millisecond)
		w.do(t, "run %d 1000", planted.id)
		time.Sleep(900 * time.Millisecond)
	}
	late, err := busy.Load("late")
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := unix.Kill(a.pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	ran, _ := planted.stats(t)
	wantGroup := groupUsage(t, dir) - before
	now := a.scraped(t)
	now.check(t, first)
	for _, c := range []struct {
		metric, label, value string
		want                 int64
	}{
		{"tare_group_cpu_seconds_total", "cgroup", path, wantGroup},
		{"tare_bpf_program_run_seconds_total", "id", strconv.Itoa(int(planted.id)), ran - used},
	} {
		was, _ := first.sum(c.metric, c.label, c.value)
		is, _ := now.sum(c.metric, c.label, c.value)
		if got := nanoseconds(is) - nanoseconds(was); got != c.want {
			t.Errorf("%s grew by %d ns, want %d", c.metric, got, c.want)
		}
	}
	was, _ := first.sum("tare_bpf_programs_missed_total", "when", "unseen")
	is, _ := now.sum("tare_bpf_programs_missed_total", "when", "unseen")
	if is-was < unseen { // others on the machine load programs as well
		t.Errorf("%g programs came and went unseen, want %d or more", is-was, unseen)
	}
	if gap := now.total("tare_agent_gap_seconds_total"); gap != 0 {
		t.Errorf("%g s are in no window", gap)
	}
}
