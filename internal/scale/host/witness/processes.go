package witness

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// names caches the control groups of processes, looked up while the processes exist.
type names struct {
	looked   bool             // creating a resolver was tried
	resolver *cgroup.Resolver // nil if no control groups are mounted
	groups   map[int]string
	next     time.Time // when to look up processes again
}

const (
	processesEvery = time.Second
	maxBusiest     = 16
	maxNames       = 1 << 14
	processesBatch = 512 // processes read by one system call
)

func (n *names) resolve(pid int) {
	if !n.looked {
		n.looked = true
		if layout, err := cgroup.Discover(cgroup.Roots{}); err == nil {
			n.resolver = layout.NewResolver()
		}
	}
	if n.groups == nil {
		n.groups = map[int]string{}
	}
	if _, known := n.groups[pid]; known || n.resolver == nil || len(n.groups) >= maxNames {
		return
	}
	path, err := n.resolver.LivePath(pid)
	if err != nil {
		path = "" // it has ended
	}
	n.groups[pid] = path
}

// cgroup returns the group of a process; empty if unknown.
func (n *names) cgroup(pid int) string { return n.groups[pid] }

// lookAtProcesses looks up the groups of the processes that were seen running, once a second or if now is set.
func (w *Witness) lookAtProcesses(now bool) error {
	if !now && time.Now().Before(w.names.next) {
		return nil
	}
	w.names.next = time.Now().Add(processesEvery)
	return w.processes(func(pid uint32, _ process) { w.names.resolve(int(pid)) })
}

// processes calls f with each process that was seen running.
func (w *Witness) processes(f func(pid uint32, p process)) error {
	if w.without {
		return nil
	}
	if w.pids == nil { // kept: this runs once a second
		w.pids, w.values = make([]uint32, processesBatch), make([]process, processesBatch)
	}
	var cursor ebpf.MapBatchCursor
	for {
		n, err := w.objects.TareBusiest.BatchLookup(&cursor, w.pids, w.values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("reading which processes were seen running: %w", err)
		}
		for i := range n {
			f(w.pids[i], w.values[i])
		}
		if err != nil { // no more entries
			return nil
		}
	}
}

func (w *Witness) clearProcesses() error {
	var pids []uint32
	if err := w.processes(func(pid uint32, _ process) { pids = append(pids, pid) }); err != nil {
		return err
	}
	for _, pid := range pids {
		if err := w.objects.TareBusiest.Delete(pid); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("clearing the processes that were seen running: %w", err)
		}
	}
	w.names.groups = nil // PIDs are reused
	w.names.next = time.Time{}
	return nil
}

// busiest returns the processes that were seen most. Those with the same name in the same group are one occupant: a
// build consists of a thousand short processes.
func (w *Witness) busiest() ([]ledger.Occupant, error) {
	type who struct{ comm, cgroup string }
	sums := map[who]*ledger.Occupant{}
	most := map[who]uint64{}
	err := w.processes(func(pid uint32, p process) {
		k := who{text(p.Comm[:]), w.names.cgroup(int(pid))}
		o := sums[k]
		if o == nil {
			o = &ledger.Occupant{Comm: k.comm, Cgroup: k.cgroup}
			sums[k] = o
		}
		o.Processes++
		o.Seconds += float64(p.Looks) * w.period.Seconds()
		if p.Looks > most[k] {
			o.PID, most[k] = int(pid), p.Looks
		}
	})
	all := []ledger.Occupant{}
	for o := range maps.Values(sums) {
		all = append(all, *o)
	}
	slices.SortFunc(all, func(a, b ledger.Occupant) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.PID, b.PID))
	})
	return all[:min(len(all), maxBusiest)], err
}
