package meter

import (
	"fmt"
	"testing"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
)

// testLocator returns a locator that reads groups from threads instead of /proc, and counts the reads. A thread without
// an entry is gone.
func testLocator(threads map[int]string) (*locator, *int) {
	reads := 0
	l := newLocator(&cgroup.Layout{Mode: cgroup.ModeV1}, newGroupNames(), false)
	l.read = func(tid int) (string, error) {
		reads++
		if g, ok := threads[tid]; ok {
			return g, nil
		}
		return "", fmt.Errorf("thread %d: %w", tid, proc.ErrGone)
	}
	l.begin()
	return l, &reads
}

func (l *locator) nameOf(tid uint32, at int64) string {
	return l.names.names[l.group(&perf.Sample{PID: tid, TID: tid, Time: at})]
}

func TestThreadsAreReadOnceAndAgain(t *testing.T) {
	threads := map[int]string{5: "/a"}
	l, reads := testLocator(threads)
	for range 10 {
		if got := l.nameOf(5, 1000); got != "/a" {
			t.Fatalf("got %q", got)
		}
	}
	if *reads != 1 {
		t.Errorf("a thread was read %d times for 10 samples", *reads)
	}
	threads[5] = "/b" // it was moved
	if got := l.nameOf(5, 1000+rereadAfter); got != "/b" {
		t.Errorf("after it was moved: got %q", got)
	}
	delete(threads, 5)
	if got := l.nameOf(5, 1000+2*rereadAfter); got != "/b" {
		t.Errorf("after it ended: got %q, want its last group", got)
	}
}

func TestAThreadThatIsGoneHasItsMakersGroup(t *testing.T) {
	cases := []struct {
		name    string
		threads map[int]string
		tasks   []perf.Task
		want    string
	}{
		{"maker alive", map[int]string{1: "/a"}, []perf.Task{{TID: 2, PTID: 1}}, "/a"},
		{"maker of the maker alive", map[int]string{1: "/a"}, []perf.Task{{TID: 3, PTID: 1}, {TID: 2, PTID: 3}}, "/a"},
		{"alive itself, moved since its birth", map[int]string{1: "/a", 2: "/b"}, []perf.Task{{TID: 2, PTID: 1}}, "/b"},
		{"all gone", nil, []perf.Task{{TID: 2, PTID: 1}}, ""},
		{"no birth seen", nil, nil, ""},
		{"a circle", nil, []perf.Task{{TID: 2, PTID: 3}, {TID: 3, PTID: 2}}, ""},
		{"ended in this drain", map[int]string{1: "/a"}, []perf.Task{{TID: 2, PTID: 1}, {TID: 2, Exit: true}}, "/a"},
	}
	for _, c := range cases {
		l, _ := testLocator(c.threads)
		for _, task := range c.tasks {
			l.task(task)
		}
		if got := l.nameOf(2, 1000); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		l.end()
	}
}

func TestEndedThreadsAreForgotten(t *testing.T) {
	l, _ := testLocator(nil)
	for tid := uint32(1); tid <= 1000; tid++ {
		l.task(perf.Task{TID: tid, PTID: 1})
		l.task(perf.Task{TID: tid, Exit: true})
	}
	l.end()
	if len(l.threads) != 0 {
		t.Errorf("%d threads are kept", len(l.threads))
	}
}

// A storm of new threads costs a bounded number of reads in each drain; what could not be read is unknown, not guessed.
func TestReadsAreBounded(t *testing.T) {
	threads := map[int]string{}
	for tid := range 10 * readsPerDrain {
		threads[tid+1] = "/a"
	}
	l, reads := testLocator(threads)
	known := 0
	for tid := range threads {
		if l.nameOf(uint32(tid), 1000) == "/a" {
			known++
		}
	}
	if *reads != readsPerDrain || known != readsPerDrain {
		t.Errorf("%d reads, %d threads known", *reads, known)
	}
}

func TestTheIdleTaskHasNoGroup(t *testing.T) {
	l, reads := testLocator(map[int]string{0: "/wrong"})
	if got := l.group(&perf.Sample{}); got != groupIdle || *reads != 0 {
		t.Errorf("got group %d after %d reads", got, *reads)
	}
}
