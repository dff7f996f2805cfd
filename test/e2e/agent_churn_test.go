package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/test/busy"
	"tare/test/long"
)

// TestAgentChurn: while groups and eBPF programs come and go, sums never fall, nothing is counted twice, and the
// agent's memory and descriptors stay what they were.
func TestAgentChurn(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	rest, _ := groups.make(t, "rest")
	w := startWorker(t, rest)
	a := startAgent(t).serving(t)

	made, loaded := 0, 0
	var kept []*ebpf.Program
	var last *scrape
	// churn makes and removes n groups, each of which uses CPU time, and loads a program for each five of them.
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
	churn(long.Repeat(75, 500), 0) // warming up: memory grows for as many groups
	memory, files := settled()
	if long.Enabled() {
		for until := time.Now().Add(agentFor(t)); time.Now().Before(until); {
			churn(50, 30*time.Millisecond) // with the scrapes, 1,000 a minute and 200 programs
		}
	} else {
		churn(125, 0)
	}
	// What is gone is forgotten when groups are looked for, every ten seconds.
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
	// The garbage collector lets the heap grow by half of what is in use, which is a few MB.
	if nowMemory > memory+4<<20 {
		t.Errorf("%d KiB are resident, and %d were before", nowMemory>>10, memory>>10)
	}
	// Others on the machine make groups as well.
	if nowFiles > files+20 {
		t.Errorf("%d descriptors are open, and %d were before", nowFiles, files)
	}
}

// TestAgentStopped: an agent that is stopped for a while has what was used meanwhile in its totals when it goes on, and
// counts the programs that came and went.
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
