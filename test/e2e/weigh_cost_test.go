package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// A machine with many groups and programs: what a window costs there is what Tare promises to keep small.
const (
	manyGroups   = 300
	manyPrograms = 50
	manyMaps     = 100
	anonLimit    = 16 << 20 // bytes
	cpuLimit     = 0.01     // of one CPU, over a window of 10 s
)

// crowd fills the machine: groups in every hierarchy, programs and maps held by this process.
func crowd(t testing.TB) {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("tare-test-%d-crowd", os.Getpid())
	var dirs []string
	for _, h := range layout.Hierarchies {
		if h.V2 || h.Has("cpu") || h.Has("cpuacct") || h.Has("memory") {
			dirs = append(dirs, filepath.Join(h.Mount, name))
		}
	}
	t.Cleanup(func() {
		for _, dir := range dirs {
			for i := range manyGroups {
				os.Remove(filepath.Join(dir, strconv.Itoa(i)))
			}
			if err := os.Remove(dir); err != nil {
				t.Errorf("removing a group of the test: %v", err)
			}
		}
	})
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range manyGroups {
			if err := os.Mkdir(filepath.Join(dir, strconv.Itoa(i)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range manyPrograms {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: fmt.Sprintf("crowd_%d", i), Type: ebpf.SocketFilter, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
	}
	for i := range manyMaps {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: fmt.Sprintf("crowd_%d", i), Type: ebpf.Hash, KeySize: 4, ValueSize: 8,
			MaxEntries: 64})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
	}
}

// TestWeighSaysItsOwnCost: the cost that tare weigh reports of itself agrees with what the kernel reports of it, and
// its anonymous memory stays within a limit.
func TestWeighSaysItsOwnCost(t *testing.T) {
	leavesNothing(t)
	crowd(t)
	p := command{args: []string{"weigh", "--for", "3s", "--json"}}.start(t)
	// before is the CPU time of tare until it printed the ledger. What it does after its account, exiting above all, is
	// not in the account, and may take any time on a busy machine.
	var before time.Duration
	// The peaks so far. (The peak that wait4 reports is never less than what this process had when it started tare.)
	var rss, anon uint64
	for {
		now, err := proc.Runtime(p.pid)
		_, most, gone := proc.FS{}.Resident(p.pid)
		if own, err := (proc.FS{}).Anon(p.pid); err == nil {
			anon = max(anon, own)
		}
		if err != nil || gone != nil || most == 0 { // a process without memory is about to end
			break
		}
		if rss = most; p.stdout.String() == "" {
			before = now
		}
		time.Sleep(time.Millisecond)
	}
	out := p.wait(t)
	if out.code != 0 {
		t.Fatal(out)
	}
	l := readLedger(t, out.stdout)
	if len(l.Cgroups) < manyGroups || len(l.Programs) < manyPrograms || len(l.Maps) < manyMaps {
		t.Errorf("the ledger has %d groups, %d programs, %d maps", len(l.Cgroups), len(l.Programs), len(l.Maps))
	}
	cpu := (p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()).Seconds()
	t.Logf("self: %.1f ms CPU, %.1f MB; the kernel: %.1f ms until it printed, %.1f ms in all, %.1f MB, anonymous %.1f MB",
		1e3*l.Self.CPUSeconds, float64(l.Self.RSSBytes)/1e6, 1e3*before.Seconds(), 1e3*cpu, float64(rss)/1e6,
		float64(anon)/1e6)
	// The account is made before it is printed, and it takes some time to write it as JSON.
	if before == 0 || l.Self.CPUSeconds > 1.1*cpu+0.01 || l.Self.CPUSeconds < 0.5*before.Seconds() {
		t.Errorf("self says %.1f ms of CPU, the kernel %.1f ms until it printed and %.1f ms in all", 1e3*l.Self.CPUSeconds,
			1e3*before.Seconds(), 1e3*cpu)
	}
	if math.Abs(float64(l.Self.RSSBytes)-float64(rss)) > 0.25*float64(rss) {
		t.Errorf("self says %d bytes resident, the kernel %d", l.Self.RSSBytes, rss)
	}
	// The rest of its memory is pages of the binary, which the kernel can take back. How many of them it maps around each
	// that is used depends on what the page cache holds (filemap_map_pages in mm/filemap.c).
	if anon > anonLimit {
		t.Errorf("%.1f MB of anonymous memory, the limit is %d", float64(anon)/1e6, anonLimit)
	}
}

// BenchmarkWeigh measures what Tare promises to keep small: the CPU time of the whole process for a window of ten
// seconds on the crowded machine.
func BenchmarkWeigh(b *testing.B) {
	crowd(b)
	for range b.N {
		cmd := exec.Command(bin, "weigh", "--for", "10s", "--json")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		cpu := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		b.ReportMetric(1e3*cpu, "ms-CPU/10s")
		b.ReportMetric(float64(usage.Maxrss)/1024, "MiB-RSS")
		b.ReportMetric(cpu/10/cpuLimit, "of-limit")
	}
}

// TestMapBytesAreThoseOfBpftool: every map on the machine has the bytes that bpftool prints, and a map that several
// programs use is in the ledger once.
func TestMapBytesAreThoseOfBpftool(t *testing.T) {
	crowd(t)
	shared, err := ebpf.NewMap(&ebpf.MapSpec{Name: "shared", Type: ebpf.Array, KeySize: 4, ValueSize: 4096,
		MaxEntries: 256})
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	for range 2 {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "user", Type: ebpf.SocketFilter, License: "GPL",
			Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, shared.FD()), asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
	}
	out := tare(t, "weigh", "--for", "200ms", "--json")
	if out.code != 0 {
		t.Fatal(out)
	}
	l := readLedger(t, out.stdout)
	var shown []struct {
		ID    uint32 `json:"id"`
		Name  string `json:"name"`
		Bytes uint64 `json:"bytes_memlock"`
	}
	if err := json.Unmarshal(bpftool(t, "-j", "map", "show"), &shown); err != nil {
		t.Fatal(err)
	}
	ledgered := map[uint32]uint64{}
	var sum uint64
	for _, m := range l.Maps {
		if _, twice := ledgered[m.ID]; twice {
			t.Errorf("map %d stands in the ledger twice", m.ID)
		}
		if m.Bytes == nil {
			t.Errorf("map %d has no bytes", m.ID)
			continue
		}
		ledgered[m.ID] = *m.Bytes
		sum += *m.Bytes
		if m.Name == "shared" && len(m.UsedBy) != 2 {
			t.Errorf("the shared map is used by %v", m.UsedBy)
		}
	}
	if total, unknown := l.MapBytes(); total != sum || unknown != 0 {
		t.Errorf("the maps sum to %d bytes and %d unknown, want %d", total, unknown, sum)
	}
	compared := 0
	for _, s := range shown {
		if strings.HasPrefix(s.Name, "libbpf_") || strings.HasPrefix(s.Name, "pid_iter") {
			continue // a map of bpftool itself
		}
		bytes, ok := ledgered[s.ID]
		if !ok {
			continue // loaded after the ledger was taken
		}
		compared++
		if bytes != s.Bytes {
			t.Errorf("map %d (%s): tare says %d bytes, bpftool %d", s.ID, s.Name, bytes, s.Bytes)
		}
	}
	if compared <= manyMaps {
		t.Errorf("only %d maps were compared", compared)
	}
}
