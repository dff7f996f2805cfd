package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

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
