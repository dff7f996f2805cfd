package e2e

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"tare/test/busy"
	"tare/test/long"
)

// statisticsOn reports whether the kernel counts the runs of eBPF programs, which it finds out by running one.
func statisticsOn(t *testing.T) bool {
	t.Helper()
	p, err := busy.Load("counted")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := busy.Run(p, 1); err != nil {
		t.Fatal(err)
	}
	s, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return s.RunCount > 0
}

// exists reports whether the kernel still has an object, given by its kind and ID as held returns them.
func exists(what string) bool {
	var kind string
	var id uint32
	if _, err := fmt.Sscan(what, &kind, &id); err != nil {
		return false
	}
	var err error
	switch kind {
	case "prog_id":
		var p *ebpf.Program
		if p, err = ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
			p.Close()
		}
	case "map_id":
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(ebpf.MapID(id)); err == nil {
			m.Close()
		}
	case "link_id":
		var l link.Link
		if l, err = link.NewFromID(link.ID(id)); err == nil {
			l.Close()
		}
	}
	return err == nil
}

// TestAgentKilled: whenever the agent is killed, nothing of it is left in the kernel, the run statistics are off again,
// and another agent can start.
func TestAgentKilled(t *testing.T) {
	leavesNothing(t)
	othersCount := statisticsOn(t)
	kinds := map[string]int{}
	phases := []string{"start-up", "scrape", "window"}
	for i := range long.Repeat(5, 50) {
		phase := phases[i%len(phases)]
		a := startAgent(t)
		switch phase {
		case "start-up":
			time.Sleep(rand.N(400 * time.Millisecond))
		case "scrape":
			a.serving(t)
			go func() {
				for {
					if _, _, err := a.get("/metrics"); err != nil {
						return
					}
				}
			}()
			time.Sleep(rand.N(time.Second))
		case "window":
			a.serving(t)
			go func() { _, _, _ = a.get("/v1/ledger?for=2s") }()
			time.Sleep(rand.N(2 * time.Second))
		}
		a.signal(t, syscall.SIGSTOP)
		before := held(a.pid)
		a.signal(t, syscall.SIGKILL)
		<-a.done
		for _, what := range before {
			kinds[what[:4]]++
		}
		left := before
		for end := time.Now().Add(20 * time.Second); len(left) > 0 && time.Now().Before(end); {
			if left = slices.DeleteFunc(left, func(what string) bool { return !exists(what) }); len(left) > 0 {
				time.Sleep(50 * time.Millisecond)
			}
		}
		if len(left) > 0 {
			t.Errorf("killed in %s: there still are %v", phase, left)
		}
		if !othersCount && statisticsOn(t) {
			t.Errorf("killed in %s: the kernel still counts the runs of eBPF programs, or another process has begun to", phase)
		}
	}
	if kinds["prog"] == 0 || kinds["map_"] == 0 {
		t.Errorf("the killed agents had %v: the test has looked at nothing", kinds)
	}
	a := startAgent(t).serving(t)
	first := a.scraped(t)
	a.scraped(t).check(t, first)
}

// TestAgentTerminated: after SIGTERM the agent exits with code 0 within 10 s, even with a window open and a slow reader
// connected.
func TestAgentTerminated(t *testing.T) {
	leavesNothing(t)
	for _, busy := range []bool{false, true} {
		a := startAgent(t).serving(t)
		if busy {
			slow, err := net.Dial("tcp", a.url[len("http://"):])
			if err != nil {
				t.Fatal(err)
			}
			defer slow.Close()
			fmt.Fprint(slow, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
			if _, err := bufio.NewReaderSize(slow, 16).ReadByte(); err != nil {
				t.Fatal(err)
			}
			go func() { _, _, _ = a.get("/v1/ledger?for=1m") }()
			time.Sleep(300 * time.Millisecond)
		}
		began := time.Now()
		a.signal(t, syscall.SIGTERM)
		o := a.wait(t)
		if took := time.Since(began); o.code != 0 || took > 10*time.Second {
			t.Errorf("busy %v: it ended after %v with %s", busy, took, o)
		}
	}
}
