package meter

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
	"tare/internal/scale/attribution"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
)

// maxEntries bounds the addresses that are remembered: trampolines come and go for as long as a meter lives.
const maxEntries = 1 << 15

// lookUp says which addresses are entries into an interrupt context. Known answers are kept: the kernel's text does not
// move.
func (m *Meter) lookUp(addrs []uint64) (map[uint64]ledger.Context, error) {
	if len(m.entries) > maxEntries {
		clear(m.entries)
	}
	missing := slices.DeleteFunc(slices.Clone(addrs), func(a uint64) bool { _, known := m.entries[a]; return known })
	if len(missing) == 0 {
		return m.entries, nil
	}
	found, err := m.symbols.Resolve(missing)
	if err != nil {
		return nil, fmt.Errorf("looking up kernel functions: %w", err)
	}
	for i, a := range missing {
		m.entries[a] = attribution.Entry(found[i])
	}
	return m.entries, nil
}

// initialNamespace is false where this process is known to be in another namespace than the machine's own.
func initialNamespace(kind string, inode uint64) bool {
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/"+kind, &st) != nil || st.Ino == inode
}

// kernelThreads says of the threads of the kernel by their number whether they are still there.
func (m *Meter) kernelThreads() map[int]bool {
	return lists.Keyed(m.kernel.Threads(), func(t proc.KernelThread) (int, bool) { return t.PID, !t.Gone })
}

// readRoot reads the CPU time of the processes in the root group of a v2 machine, kernel threads aside: v2 has no
// counter for them.
func (m *Meter) readRoot() (map[int]time.Duration, error) {
	h, ok := m.layout.V2()
	if !ok || m.layout.Mode != cgroup.ModeV2 || m.rootError != nil {
		return nil, nil
	}
	raw, err := os.ReadFile(filepath.Join(h.Mount, "cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("reading which processes are in the root group: %w", err)
	}
	kernel := m.kernelThreads()
	out := map[int]time.Duration{}
	for line := range strings.Lines(string(raw)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || kernel[pid] || pid == 0 {
			continue
		}
		if d, err := proc.Runtime(pid); err == nil { // else it has ended
			out[pid] = d
		}
	}
	return out, nil
}
