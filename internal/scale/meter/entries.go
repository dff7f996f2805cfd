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

// maxEntries bounds the cached addresses: trampolines come and go as long as a meter lives.
const maxEntries = 1 << 15

// lookUp returns, for each address, the interrupt context that the function there enters, if any. Answers are cached:
// the kernel's text does not move.
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

// initialNamespace reports whether this process is in the machine's initial namespace of the given kind, which has the
// given inode number. It also returns true if that is unknown.
func initialNamespace(kind string, inode uint64) bool {
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/"+kind, &st) != nil || st.Ino == inode
}

// kernelThreads returns the known kernel threads by PID, with false for those that have gone.
func (m *Meter) kernelThreads() map[int]bool {
	return lists.Keyed(m.kernel.Threads(), func(t proc.KernelThread) (int, bool) { return t.PID, !t.Gone })
}

// readRoot returns the CPU time of each process in the root group where v2 counts CPU time, because v2 has no counter
// for all of them together. It leaves out kernel threads. The result is nil on other machines.
func (m *Meter) readRoot() (map[int]time.Duration, error) {
	h, _ := m.layout.V2()
	if m.layout.CPUMode() != cgroup.ModeV2 || m.rootError != nil {
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
