package bpf

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/feature"
	"tare/test/deep"
	"tare/test/rights"
)

// A zoo is a set of objects of many kinds on the running kernel.
type zoo struct {
	maps                     map[string]*ebpf.Map
	counter, nameless, twin  *ebpf.Program // counter and twin share a map
	outer, outerHash, inside *ebpf.Map
}

func root(t testing.TB) {
	t.Helper()
	if err := syscallFeature().Err(); err != nil {
		t.Skipf("needs root: %v", err)
	}
}

func newZoo(t testing.TB) *zoo {
	t.Helper()
	root(t)
	z := &zoo{maps: map[string]*ebpf.Map{}}
	inner := &ebpf.MapSpec{Name: "zoo_inner", Type: ebpf.Array, KeySize: 4, ValueSize: 64, MaxEntries: 8}
	for _, spec := range []*ebpf.MapSpec{
		{Name: "zoo_hash", Type: ebpf.Hash, KeySize: 16, ValueSize: 24, MaxEntries: 1000},
		{Name: "zoo_lazy_hash", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 5000,
			Flags: 1 /* BPF_F_NO_PREALLOC */},
		{Name: "zoo_array", Type: ebpf.Array, KeySize: 4, ValueSize: 100, MaxEntries: 77},
		{Name: "zoo_mmap", Type: ebpf.Array, KeySize: 4, ValueSize: 100, MaxEntries: 77, Flags: 1 << 10 /* BPF_F_MMAPABLE */},
		{Name: "zoo_percpu", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 32, MaxEntries: 10},
		{Name: "zoo_percpu_hash", Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 32, MaxEntries: 10},
		{Name: "zoo_lru", Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 512},
		{Name: "zoo_trie", Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 4, MaxEntries: 100, Flags: 1},
		{Name: "zoo_ring", Type: ebpf.RingBuf, MaxEntries: 64 << 10},
		{Name: "zoo_perf", Type: ebpf.PerfEventArray, KeySize: 4, ValueSize: 4, MaxEntries: 2},
		{Name: "zoo_queue", Type: ebpf.Queue, ValueSize: 8, MaxEntries: 100},
		{Name: "zoo_stack", Type: ebpf.StackTrace, KeySize: 4, ValueSize: 8 * 20, MaxEntries: 100},
		{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1},
		inner,
	} {
		z.maps[spec.Name] = z.newMap(t, spec)
	}
	z.inside = z.maps["zoo_inner"]
	z.outer = z.newMap(t, &ebpf.MapSpec{Name: "zoo_outer", Type: ebpf.ArrayOfMaps, KeySize: 4, MaxEntries: 5,
		InnerMap: inner})
	z.outerHash = z.newMap(t, &ebpf.MapSpec{Name: "zoo_outer_hash", Type: ebpf.HashOfMaps, KeySize: 8, MaxEntries: 5,
		InnerMap: inner})
	for i, m := range []*ebpf.Map{z.outer, z.outerHash} {
		var key any = uint32(3)
		if i == 1 {
			key = uint64(99)
		}
		if err := m.Put(key, z.inside); err != nil {
			t.Fatal(err)
		}
	}
	shared := z.maps["zoo_array"].FD()
	z.counter = z.newProgram(t, "zoo_counter", ebpf.SocketFilter, asm.LoadMapPtr(asm.R1, shared),
		asm.LoadMapPtr(asm.R1, z.outer.FD()))
	z.twin = z.newProgram(t, "zoo_twin", ebpf.SocketFilter, asm.LoadMapPtr(asm.R1, shared))
	z.nameless = z.newProgram(t, "", ebpf.SchedCLS)
	return z
}

func (z *zoo) newMap(t testing.TB, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatalf("map %q: %v", spec.Name, err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func (z *zoo) newProgram(t testing.TB, name string, typ ebpf.ProgramType, before ...asm.Instruction) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: typ, License: "GPL",
		Instructions: append(slices.Clone(before), asm.Mov.Imm(asm.R0, 0), asm.Return()),
	})
	if err != nil {
		t.Fatalf("program %q: %v", name, err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func idOf(t testing.TB, p *ebpf.Program) uint32 {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

func mapID(t testing.TB, m *ebpf.Map) uint32 {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

func open(t testing.TB, o Options) *Inventory {
	t.Helper()
	root(t)
	v, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func snapshot(t testing.TB, v *Inventory) *Snapshot {
	t.Helper()
	s, err := v.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Snapshot) program(id uint32) *Program {
	for i := range s.Programs {
		if s.Programs[i].ID == id {
			return &s.Programs[i]
		}
	}
	return nil
}

func (s *Snapshot) mapOf(id uint32) *Map {
	for i := range s.Maps {
		if s.Maps[i].ID == id {
			return &s.Maps[i]
		}
	}
	return nil
}

// bpftool is what bpftool prints of an object; a field that it does not print is zero.
type bpftool struct {
	ID       uint32   `json:"id"`
	Type     string   `json:"type"`
	Name     string   `json:"name"`
	Tag      string   `json:"tag"`
	LoadedAt int64    `json:"loaded_at"` // seconds
	UID      uint32   `json:"uid"`
	Xlated   uint64   `json:"bytes_xlated"`
	JITed    uint64   `json:"bytes_jited"`
	Memlock  uint64   `json:"bytes_memlock"`
	MapIDs   []uint32 `json:"map_ids"`
	Key      uint32   `json:"bytes_key"`
	Value    uint32   `json:"bytes_value"`
	Entries  uint32   `json:"max_entries"`
	Flags    uint32   `json:"flags"`
}

func runBpftool(t *testing.T, kind string) map[uint32]bpftool {
	t.Helper()
	path, err := exec.LookPath("bpftool")
	if err != nil {
		t.Skip("needs bpftool")
	}
	text, err := exec.Command(path, "-j", kind, "show").Output()
	if err != nil {
		t.Fatalf("bpftool %s show: %v", kind, err)
	}
	var list []bpftool
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatalf("bpftool %s show: %v", kind, err)
	}
	out := map[uint32]bpftool{}
	for _, o := range list {
		out[o.ID] = o
	}
	return out
}

// Every object of the machine is as bpftool prints it. On a shared machine other objects may come and go: those that
// both see must agree, and both must see the zoo.
func TestLikeBpftool(t *testing.T) {
	z := newZoo(t)
	long := []string{"zoo_for_tenant_a_of_two", "zoo_for_tenant_b_of_two"} // the kernel keeps the same 15 bytes of both
	for i, name := range long {
		function := &btf.Func{Name: name, Type: &btf.FuncProto{Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
			Params: []btf.FuncParam{{Name: "ctx", Type: &btf.Pointer{Target: &btf.Void{}}}}}}
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SocketFilter, License: "GPL",
			Instructions: asm.Instructions{
				btf.WithFuncMetadata(asm.Mov.Imm(asm.R0, int32(i)).WithSymbol(name), function), asm.Return(),
			}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
	}
	inventory := open(t, Options{})
	for range 2 { // first looked up, then cached
		s := snapshot(t, inventory)
		for _, name := range long {
			if !slices.ContainsFunc(s.Programs, func(p Program) bool { return p.Name == name }) {
				t.Errorf("no program is named %s", name)
			}
		}
	}
	s := snapshot(t, inventory)
	programs, maps := runBpftool(t, "prog"), runBpftool(t, "map")
	for _, p := range []*ebpf.Program{z.counter, z.twin, z.nameless} {
		if s.program(idOf(t, p)) == nil {
			t.Errorf("program %v is not in the snapshot", p)
		}
	}
	for _, m := range z.maps {
		if s.mapOf(mapID(t, m)) == nil {
			t.Errorf("map %v is not in the snapshot", m)
		}
	}
	compared := 0
	for _, p := range s.Programs {
		b, ok := programs[p.ID]
		if !ok {
			continue
		}
		compared++
		// Both take a name that the kernel truncates from BTF.
		if b.Type != p.Type || b.Tag != p.Tag || b.Name != p.Name || b.Xlated != p.XlatedBytes ||
			b.JITed != p.JITedBytes || !slices.Equal(b.MapIDs, p.MapIDs) {
			t.Errorf("program %d: bpftool %+v, here %+v", p.ID, b, p)
		}
		if d := p.LoadedAt.Sub(time.Unix(b.LoadedAt, 0)); d < -time.Second || d > 2*time.Second {
			t.Errorf("program %d: loaded at %v, bpftool says %v", p.ID, p.LoadedAt, time.Unix(b.LoadedAt, 0))
		}
		var code uint64
		for _, r := range p.JITed {
			code += r.Len
		}
		if code != p.JITedBytes {
			t.Errorf("program %d: ranges of %d bytes, machine code of %d", p.ID, code, p.JITedBytes)
		}
	}
	if compared < 5 {
		t.Errorf("compared %d programs, want the zoo and our own", compared)
	}
	for _, m := range s.Maps {
		b, ok := maps[m.ID]
		if !ok {
			continue
		}
		if m.Bytes == nil || b.Memlock != *m.Bytes || b.Type != m.Type || b.Name != m.Name || b.Key != m.KeySize ||
			b.Value != m.ValueSize || b.Entries != m.MaxEntries {
			t.Errorf("map %d: bpftool %+v, here %+v", m.ID, b, m)
		}
	}
}

func TestRelations(t *testing.T) {
	z := newZoo(t)
	for _, o := range []Options{{}, {WithoutIterators: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			v := open(t, o)
			s := snapshot(t, v)
			counter, twin := idOf(t, z.counter), idOf(t, z.twin)
			array, inner := s.mapOf(mapID(t, z.maps["zoo_array"])), s.mapOf(mapID(t, z.inside))
			if !slices.Equal(array.UsedBy, []uint32{counter, twin}) {
				t.Errorf("the shared map is used by %v, want %v", array.UsedBy, []uint32{counter, twin})
			}
			if !slices.Equal(inner.UsedBy, []uint32{counter}) {
				t.Errorf("the inner map is used by %v, want %v through its outer map", inner.UsedBy, counter)
			}
			for _, outer := range []*ebpf.Map{z.outer, z.outerHash} {
				if got := s.mapOf(mapID(t, outer)).Inner; !slices.Equal(got, []uint32{inner.ID}) {
					t.Errorf("%v holds the maps %v, want %v", outer, got, inner.ID)
				}
			}
			comm, _ := os.ReadFile("/proc/self/comm")
			self := []Holder{{os.Getpid(), strings.TrimSpace(string(comm))}}
			if !slices.Equal(array.HeldBy, self) {
				t.Errorf("the shared map is held by %v, want %v", array.HeldBy, self)
			}
			if got := s.program(counter).Owners; !slices.Equal(got, self) {
				t.Errorf("the program is owned by %v, want %v", got, self)
			}
			want := 0
			if o.WithoutIterators && hiddenFiles(t) {
				want = 1
			}
			if len(s.Warnings) != want || want > 0 && s.Warnings[0].Code != "bpf-holders" {
				t.Errorf("warnings: %v, want %d", s.Warnings, want)
			}
		})
	}
}

// hiddenFiles reports whether this process may not see the files of some other process, for example one with more
// capabilities.
func hiddenFiles(t *testing.T) bool {
	t.Helper()
	hidden := exec.Command("sh", "-c", "for f in /proc/[0-9]*/fd/0; do readlink $f 2>&1 >/dev/null; done; "+
		"ls -l /proc/[0-9]*/fd 2>&1 >/dev/null")
	hidden.Env = append(os.Environ(), "LC_ALL=C")
	text, _ := hidden.CombinedOutput()
	return strings.Contains(string(text), "Permission denied")
}

// Both ways of finding an object's holders give the same result.
func TestHoldersByEitherWay(t *testing.T) {
	newZoo(t)
	v := open(t, Options{})
	if v.iterators.files == nil {
		t.Skipf("needs the iterator over files: %v", v.iterators.filesErr)
	}
	key := func(d descriptor) string { return fmt.Sprint(d.kind, d.id, d.PID) }
	mine := func(list []descriptor, err error) []string {
		if err != nil && !hiddenFiles(t) {
			t.Fatal(err)
		}
		var out []string
		for _, d := range list {
			if d.PID == os.Getpid() {
				out = append(out, key(d))
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	byIterator, byProc := mine(v.descriptors()), mine(descriptorsByProc("/proc"))
	if len(byIterator) < 15 || !slices.Equal(byIterator, byProc) {
		t.Errorf("by iterator %v, by /proc %v", byIterator, byProc)
	}
}

func TestChargedTo(t *testing.T) {
	z := newZoo(t)
	v := open(t, Options{})
	if v.iterators.maps == nil {
		t.Skipf("needs the iterator over maps: %v", v.iterators.mapsErr)
	}
	if v.mounts.memory == "" || !v.charged {
		t.Skip("needs the memory controller")
	}
	m := snapshot(t, v).mapOf(mapID(t, z.maps["zoo_hash"]))
	if m.ChargedTo == nil || *m.ChargedTo != memoryGroup(t) {
		t.Fatalf("charged to %v, want %q", m.ChargedTo, memoryGroup(t))
	}

	// The kernel charges a map to the group of its creator. A separate group shows that the path is not just that of every
	// map.
	group := filepath.Join(v.mounts.memory, fmt.Sprintf("tare-test-%d-charge", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("needs a writable memory controller: %v", err)
	}
	before := filepath.Join(v.mounts.memory, memoryGroup(t))
	move := func(group string) error {
		return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(fmt.Sprint(os.Getpid())), 0)
	}
	t.Cleanup(func() {
		if err := move(before); err != nil {
			t.Error(err)
		}
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	if err := move(group); err != nil {
		t.Skipf("needs a memory controller that takes processes: %v", err)
	}
	other := z.newMap(t, &ebpf.MapSpec{Name: "zoo_charged", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	m = snapshot(t, v).mapOf(mapID(t, other))
	want := "/" + filepath.Base(group)
	if m.ChargedTo == nil || *m.ChargedTo != want {
		t.Errorf("charged to %v, want %q", m.ChargedTo, want)
	}
}

// memoryGroup returns the group of this process in the memory controller's hierarchy.
func memoryGroup(t *testing.T) string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	unified := ""
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if slices.Contains(strings.Split(parts[1], ","), "memory") {
			return parts[2]
		}
		if parts[1] == "" {
			unified = parts[2]
		}
	}
	return unified
}

func TestCountersAreExact(t *testing.T) {
	z := newZoo(t)
	v := open(t, Options{})
	stats, err := EnableStats()
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	before := snapshot(t, v).program(idOf(t, z.counter))
	const runs = 12345
	if _, _, err := z.counter.Benchmark(make([]byte, 64), runs, nil); err != nil {
		t.Fatal(err)
	}
	all, err := v.ReadCounters()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(p Program) bool { return p.Key() == before.Key() })
	after := all[i]
	if got := after.RunCount - before.RunCount; got != runs {
		t.Errorf("%d runs counted of %d", got, runs)
	}
	if after.RunNs <= before.RunNs {
		t.Errorf("run time went from %d to %d ns", before.RunNs, after.RunNs)
	}
	if own, err := z.counter.Stats(); err != nil || own.RunCount != after.RunCount || uint64(own.Runtime) != after.RunNs {
		t.Errorf("the kernel tells the holder of the program %+v (%v), here %+v", own, err, after.Counters)
	}
	if after.RecursionMisses == nil {
		t.Error("no recursion misses on a kernel that runs these tests")
	}
	if len(after.Owners) == 0 {
		t.Error("reading counters again lost the owners")
	}
}

func TestProgramsComeAndGo(t *testing.T) {
	z := newZoo(t)
	v := open(t, Options{})
	leaving := z.newProgram(t, "zoo_leaving", ebpf.SocketFilter)
	leavingID := idOf(t, leaving)
	gone := snapshot(t, v).program(leavingID)
	if err := leaving.Close(); err != nil {
		t.Fatal(err)
	}
	coming := idOf(t, z.newProgram(t, "zoo_coming", ebpf.SocketFilter))

	// The kernel frees the id of an unloaded program immediately or a little later.
	deadline := time.Now().Add(time.Minute)
	for {
		all, err := v.ReadCounters()
		if err != nil {
			t.Fatal(err)
		}
		find := func(id uint32) *Program {
			if i := slices.IndexFunc(all, func(p Program) bool { return p.ID == id }); i >= 0 {
				return &all[i]
			}
			return nil
		}
		if p := find(coming); p == nil || p.Name != "zoo_coming" || p.Vanished || len(p.JITed) == 0 {
			t.Fatalf("the new program is %+v", p)
		}
		p := find(leavingID)
		if p == nil || p.Key() != gone.Key() {
			t.Fatalf("the program that went is %+v, want its last counters", p)
		}
		if p.Vanished {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("an unloaded program is still listed after 5 s")
		}
		time.Sleep(10 * time.Millisecond)
	}
	for i, p := range snapshot(t, v).Programs {
		if p.ID == leavingID {
			t.Errorf("the program that went is number %d of a new snapshot", i)
		}
	}
}

func TestVanishedBetweenListingAndReading(t *testing.T) {
	root(t)
	for _, cmd := range []int{cmdProgGetFDByID, cmdMapGetFDByID, cmdLinkGetFDByID} {
		if err := withObject(cmd, 0x7ffffff0, 0, func(int) error { return errors.New("visited") }); err != nil {
			t.Errorf("command %d: an id that is gone gives %v, want nothing", cmd, err)
		}
	}
}

// TestRefusedObjects: an object that the kernel refuses to show is named in a warning, and the others are still read.
func TestRefusedObjects(t *testing.T) {
	z := newZoo(t)
	v := &Inventory{}
	refused, after := idOf(t, z.twin), false
	err := v.eachProgram(func(id uint32, _ int) error {
		after = after || id > refused
		if id == refused {
			return fmt.Errorf("asking for it: %w", unix.EPERM)
		}
		return nil
	})
	if err != nil || !after || len(v.warnings) != 1 || v.warnings[0].Code != "bpf-unread" ||
		!strings.Contains(v.warnings[0].Message, fmt.Sprintf("refuses to show: 1, among them [%d]", refused)) {
		t.Errorf("%v, others after it: %v, warnings %v", err, after, v.warnings)
	}
	if err := v.eachProgram(func(uint32, int) error { return unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("another error gives %v", err)
	}
}

// TestHiddenProcesses: without the right to look at other users' processes, warnings say that what they hold and which
// namespaces they are in is not fully known.
func TestHiddenProcesses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, whose processes are hidden then")
	}
	sleeper := exec.Command("sleep", "60")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := sleeper.Start(); err != nil {
		t.Skipf("needs namespaces: %v", err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	rights.Without(t, func() {
		if _, err := descriptorsByProc("/proc"); err == nil || !strings.Contains(err.Error(), "may not be listed") {
			t.Errorf("holders: %v", err)
		}
		if _, err := (&Inventory{proc: "/proc"}).namespaces(); err == nil || !strings.Contains(err.Error(), "are not known") {
			t.Errorf("network namespaces: %v", err)
		}
	})
}

func TestOwnPrograms(t *testing.T) {
	v := open(t, Options{})
	s := snapshot(t, v)
	own := map[string]int{}
	for _, p := range s.Programs {
		if p.Own {
			own[p.Name]++
		}
	}
	if v.iterators.maps != nil && own["tare_maps"] == 0 || v.iterators.files != nil && own["tare_holders"] == 0 {
		t.Errorf("own programs: %v", own)
	}
	ids := v.own
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	// No program remains: the kernel frees one soon after its last descriptor is closed.
	deadline := time.Now().Add(time.Minute)
	for id := range ids {
		for {
			err := withObject(cmdProgGetFDByID, id, 0, func(int) error { return unix.EEXIST })
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("own program %d is still there a minute after closing: %v", id, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// TestSharedIterators: inventories that share iterators load them once, and closing one inventory does not close them
// for the other.
func TestSharedIterators(t *testing.T) {
	newZoo(t)
	var shared Iterators
	first := open(t, Options{Iterators: &shared})
	t.Cleanup(shared.Close)
	second := open(t, Options{Iterators: &shared})
	if shared.files == nil {
		t.Skipf("needs the iterator over files: %v", shared.filesErr)
	}
	if len(first.own) == 0 || !maps.Equal(first.own, second.own) {
		t.Errorf("own programs %v, and of the other %v", first.own, second.own)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := second.descriptors(); err != nil || len(all) < 15 {
		t.Errorf("%d descriptors, %v", len(all), err)
	}
}

// cgroup2 creates a group in the v2 hierarchy for the duration of the test.
func cgroup2(t *testing.T, v *Inventory, name string) (dir, path string) {
	t.Helper()
	if v.mounts.v2 == "" {
		t.Skip("needs cgroup v2")
	}
	path = fmt.Sprintf("/tare-test-%d-%s", os.Getpid(), name)
	dir = filepath.Join(v.mounts.v2, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("needs a writable cgroup v2: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, path
}

// The main goroutine keeps the main thread, because /proc/self shows what the main thread sees: a test that moves its
// thread to other namespaces must not get that thread.
func init() { runtime.LockOSThread() }

func TestAttachments(t *testing.T) {
	root(t)
	// This thread gets private namespaces, so that nothing is attached to the machine's lo, and nothing is mounted on the
	// machine. The thread ends with the test.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		t.Skipf("needs namespaces: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, ""); err != nil {
		t.Logf("no tracefs: %v", err)
	}
	z := newZoo(t)
	v := open(t, Options{})
	dir, path := cgroup2(t, v, "attach")
	group, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	lo := 1

	var want []struct {
		program uint32
		target  string
	}
	expect := func(p *ebpf.Program, target string) {
		want = append(want, struct {
			program uint32
			target  string
		}{idOf(t, p), target})
	}
	attach := func(p *ebpf.Program, target string, l link.Link, err error) {
		t.Helper()
		if err != nil {
			t.Logf("not tried here: %s: %v", target, err)
			return
		}
		t.Cleanup(func() { l.Close() })
		expect(p, target)
	}

	linked := z.newProgram(t, "zoo_egress", ebpf.CGroupSKB)
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupInetEgress, Program: linked})
	attach(linked, "cgroup:"+path+" egress", l, err)

	legacy := z.newProgram(t, "zoo_ops", ebpf.SockOps)
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(group.Fd()), Program: legacy,
		Attach: ebpf.AttachCGroupSockOps}); err != nil {
		t.Fatal(err)
	}
	defer link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(group.Fd()), Program: legacy,
		Attach: ebpf.AttachCGroupSockOps})
	expect(legacy, "cgroup:"+path+" sock_ops")

	tcx := z.newProgram(t, "zoo_tcx", ebpf.SchedCLS)
	l, err = link.AttachTCX(link.TCXOptions{Interface: lo, Program: tcx, Attach: ebpf.AttachTCXIngress})
	attach(tcx, "tcx:lo ingress", l, err)

	xdp, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "zoo_xdp", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer xdp.Close()
	l, err = link.AttachXDP(link.XDPOptions{Program: xdp, Interface: lo, Flags: link.XDPGenericMode})
	attach(xdp, "xdp:lo", l, err)

	raw := z.newProgram(t, "zoo_raw", ebpf.RawTracepoint)
	l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exit", Program: raw})
	attach(raw, "raw_tracepoint:sched_process_exit", l, err)

	point := z.newProgram(t, "zoo_point", ebpf.TracePoint)
	l, err = link.Tracepoint("sched", "sched_process_exit", point, nil)
	attach(point, "tracepoint:sched_process_exit", l, err)

	byIoctl := z.newProgram(t, "zoo_ioctl", ebpf.TracePoint)
	if fd, err := tracepointEvent("sched_process_exit"); err != nil {
		t.Logf("not tried here: a program on a perf event: %v", err)
	} else {
		defer unix.Close(fd)
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, byIoctl.FD()); err != nil {
			t.Fatal(err)
		}
		expect(byIoctl, "tracepoint:sched_process_exit")
	}

	classes := []string{"qdisc add dev lo root handle 1: htb",
		"class add dev lo parent 1: classid 1:2a htb rate 1mbit", "qdisc add dev lo parent 1:2a handle 3: htb"}
	for _, c := range []struct {
		place   string
		prepare []string
	}{{"egress", []string{"qdisc add dev lo clsact"}}, {"ingress", nil}, {"parent 1:", classes}, {"parent 1:2a", nil},
		{"parent 3:", nil}} {
		classifier := z.newProgram(t, "zoo_tc", ebpf.SchedCLS)
		if err := classify(t, classifier, "lo", c.place, c.prepare...); err != nil {
			t.Logf("not tried here: a classifier at %s: %v", c.place, err)
		} else {
			expect(classifier, "tc:lo "+c.place)
		}
	}

	// By BPF_PROG_ATTACH, which makes no link.
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	sockets := z.newMap(t, &ebpf.MapSpec{Name: "zoo_sockets", Type: ebpf.SockMap, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	hash := z.newMap(t, &ebpf.MapSpec{Name: "zoo_sockhash", Type: ebpf.SockHash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	for _, c := range []struct {
		typ    ebpf.ProgramType
		attach ebpf.AttachType
		to     int
		target string
	}{
		{ebpf.FlowDissector, ebpf.AttachFlowDissector, 0, fmt.Sprintf("netns:%d flow_dissector", st.Ino)},
		{ebpf.SchedCLS, ebpf.AttachTCXEgress, lo, "tcx:lo egress"},
		{ebpf.SkMsg, ebpf.AttachSkMsgVerdict, sockets.FD(), fmt.Sprintf("sockmap:map %d msg_verdict", mapID(t, sockets))},
		{ebpf.SkSKB, ebpf.AttachSkSKBStreamVerdict, sockets.FD(),
			fmt.Sprintf("sockmap:map %d stream_verdict", mapID(t, sockets))},
		{ebpf.SkSKB, ebpf.AttachSkSKBVerdict, hash.FD(), fmt.Sprintf("sockmap:map %d skb_verdict", mapID(t, hash))},
	} {
		if _, err := programsOn(c.to, uint32(c.attach)); strings.HasPrefix(c.target, "sockmap:") &&
			errors.Is(err, unix.EINVAL) {
			t.Logf("not tried here: %s: %v", c.target, errOldSockmap)
			continue
		}
		p := z.newProgram(t, "zoo_attached", c.typ)
		o := link.RawAttachProgramOptions{Target: c.to, Program: p, Attach: c.attach}
		if err := link.RawAttachProgram(o); err != nil {
			t.Logf("not tried here: %s: %v", c.target, err)
			continue
		}
		defer link.RawDetachProgram(link.RawDetachProgramOptions{Target: c.to, Program: p, Attach: c.attach})
		expect(p, c.target)
	}

	if _, err := actions(); err != nil {
		t.Error(err)
	}
	s := snapshot(t, v)
	for _, w := range want {
		p := s.program(w.program)
		if len(p.Attached) != 1 || p.Attached[0] != w.target && !strings.HasPrefix(p.Attached[0], w.target+" (link ") {
			t.Errorf("%s is attached to %q, want %q", p.Name, p.Attached, w.target)
		}
	}
	if len(want) < 5+5 {
		t.Errorf("only %d attachments could be tried", len(want))
	}
	for _, w := range s.Warnings {
		for part := range strings.SplitSeq(w.Message, "; ") {
			if !ofOthers(w.Code, part, path) {
				t.Errorf("warning %s: %s", w.Code, part)
			}
		}
	}
}

// ofOthers reports whether a part of a warning is about programs that the kernel refuses to show, about another network
// namespace than the test's, or about another control group than path. Such objects of others come and go.
func ofOthers(code, part, path string) bool {
	return code == "bpf-unread" || strings.Contains(part, "in network namespace ") ||
		strings.Contains(part, " other network namespaces were not looked at") ||
		strings.Contains(part, "control group ") && !strings.Contains(part, "control group "+path)
}

// TestAttachedDeep: a program is found on a group whose path is too long for one system call, and a group that is too
// deep to be read is named in a warning.
func TestAttachedDeep(t *testing.T) {
	z := newZoo(t)
	v := open(t, Options{})
	dir, path := cgroup2(t, v, "deep")
	name := strings.Repeat("x", 250)
	top, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(top) })
	parent := top
	down := func(length int) {
		for len(path) < length {
			parent, path = deep.Directory(t, parent, name), path+"/"+name
		}
	}
	down(unix.PathMax)
	p := z.newProgram(t, "zoo_deep", ebpf.SockOps)
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: parent, Program: p,
		Attach: ebpf.AttachCGroupSockOps}); err != nil {
		t.Fatal(err)
	}
	defer link.RawDetachProgram(link.RawDetachProgramOptions{Target: parent, Program: p,
		Attach: ebpf.AttachCGroupSockOps})
	s := snapshot(t, v)
	if got, want := s.program(idOf(t, p)).Attached, []string{"cgroup:" + path + " sock_ops"}; !slices.Equal(got, want) {
		t.Errorf("attached to %q, want %q", got, want)
	}
	if len(s.Warnings) > 0 {
		t.Errorf("warnings: %v", s.Warnings)
	}
	down(17 << 10)
	s = snapshot(t, v)
	if len(s.Warnings) != 1 || s.Warnings[0].Code != "bpf-targets" ||
		!strings.Contains(s.Warnings[0].Message, "longer than") || len(s.Warnings[0].Message) > 1000 {
		t.Errorf("with a group that is too deep: %v", s.Warnings)
	}
	if got := s.program(idOf(t, p)).Attached; len(got) != 1 {
		t.Errorf("attached to %q", got)
	}
}

// tracepointEvent opens a perf event on a tracepoint of the scheduler, on one CPU.
func tracepointEvent(name string) (int, error) {
	text, err := os.ReadFile("/sys/kernel/tracing/events/sched/" + name + "/id")
	if err != nil {
		return -1, err
	}
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Size: unix.PERF_ATTR_SIZE_VER0}
	if _, err := fmt.Sscan(string(text), &attr.Config); err != nil {
		return -1, err
	}
	return unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
}

// TestManyNamespaces: an error says how many namespaces were left out because of the limits.
func TestManyNamespaces(t *testing.T) {
	root(t)
	gone := filepath.Join(t.TempDir(), "gone")
	var many []namespace
	for i := range maxNamespaces + 2 {
		many = append(many, namespace{gone, uint64(i)})
	}
	if err := eachNamespace(many[2:], time.Hour, nil); err != nil {
		t.Errorf("with namespaces that are gone: %v", err)
	}
	// Not maxNamespacesTime: an emulated machine may stand still for longer than that.
	for most, left := range map[time.Duration]int{time.Hour: 2, -1: len(many)} {
		err := eachNamespace(many, most, nil)
		if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("%d of %d", left, len(many))) {
			t.Errorf("within %v, with more than are looked at: %v", most, err)
		}
	}
}

// classify attaches a classifier to a place of an interface by tc(8), after other commands of tc. tc takes the program
// from a pin in a bpffs, which disappears with the mount namespace.
func classify(t *testing.T, p *ebpf.Program, device, place string, prepare ...string) error {
	t.Helper()
	tc, err := exec.LookPath("tc")
	if err != nil {
		return err
	}
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mounting bpffs: %w", err)
	}
	defer unix.Unmount(dir, 0)
	pin := filepath.Join(dir, "classifier")
	if err := p.Pin(pin); err != nil {
		return err
	}
	defer p.Unpin()
	for _, args := range append(prepare, fmt.Sprintf("filter add dev %s %s bpf pinned %s", device, place, pin)) {
		if text, err := exec.Command(tc, strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("tc %s: %w: %s", args, err, text)
		}
	}
	return nil
}

// TestOtherNamespaces: attachments without a link in the network namespace of another process are listed, and so is the
// interface of a link there.
func TestOtherNamespaces(t *testing.T) {
	z := newZoo(t)
	sleeper := exec.Command("sleep", "60")
	sleeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	defer runtime.UnlockOSThread()
	if err := sleeper.Start(); err != nil {
		t.Skipf("needs namespaces: %v", err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	path := fmt.Sprintf("/proc/%d/ns/net", sleeper.Process.Pid)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	xdp := z.newProgram(t, "zoo_xdp", ebpf.XDP)
	classifier, tcx, linked := z.newProgram(t, "zoo_tc", ebpf.SchedCLS), z.newProgram(t, "zoo_tcx", ebpf.SchedCLS),
		z.newProgram(t, "zoo_linked", ebpf.SchedCLS)
	dissector := z.newProgram(t, "zoo_dissector", ebpf.FlowDissector)
	want := map[*ebpf.Program]string{
		xdp: "xdp:lo (netns %d)", tcx: "tcx:lo ingress (netns %d)", linked: "tcx:lo egress (netns %d) (link ",
		classifier: "tc:lo ingress (netns %d)", dissector: "netns:%d flow_dissector",
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		done <- func() error {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := errors.Join(unix.Setns(fd, unix.CLONE_NEWNET), unix.Unshare(unix.CLONE_NEWNS),
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			const generic = 1 << 1 // XDP_FLAGS_SKB_MODE
			if err := netlink.LinkSetXdpFdWithFlags(lo, xdp.FD(), generic); err != nil {
				return err
			}
			if err := classify(t, classifier, "lo", "parent ffff:", "qdisc add dev lo ingress"); err != nil {
				t.Logf("not tried here: a classifier: %v", err)
				delete(want, classifier)
			}
			attach := func(p *ebpf.Program, to int, typ ebpf.AttachType) {
				if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: to, Program: p, Attach: typ}); err != nil {
					t.Logf("not tried here: %v: %v", p, err)
					delete(want, p)
				}
			}
			attach(tcx, 1, ebpf.AttachTCXIngress)
			attach(dissector, 0, ebpf.AttachFlowDissector) // of the namespace of the thread
			l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: linked, Attach: ebpf.AttachTCXEgress})
			if err != nil {
				t.Logf("not tried here: a link of tcx: %v", err)
				delete(want, linked)
				return nil
			}
			t.Cleanup(func() { l.Close() })
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s := snapshot(t, open(t, Options{}))
	for p, format := range want {
		target := fmt.Sprintf(format, st.Ino)
		got := s.program(idOf(t, p)).Attached
		if len(got) != 1 || got[0] != target && !(p == linked && strings.HasPrefix(got[0], target)) {
			t.Errorf("%v is attached to %q, want %q", p, got, target)
		}
	}
	if len(s.Warnings) > 0 {
		t.Errorf("warnings: %v", s.Warnings)
	}
	// Only the thread that attached the programs remains in the namespace.
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) < 2 {
		t.Fatal(threads, err)
	}
	there := 0
	for _, path := range threads {
		var at unix.Stat_t
		if unix.Stat(path, &at) == nil && at.Ino == st.Ino {
			there++
		}
	}
	if there > 1 {
		t.Errorf("%d threads stay in the other namespace", there)
	}
}

// TestNamespaces: namespaces are found by processes and by mounts, each once. A process whose namespace may not be read
// causes an error.
func TestNamespaces(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(proc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	other, third := file("7/ns/net", ""), file("mounted", "")
	if err := errors.Join(os.MkdirAll(filepath.Join(proc, "8/ns"), 0o755), os.Link(other, filepath.Join(proc, "8/ns/net")),
		os.MkdirAll(filepath.Join(proc, "9/ns"), 0o755)); err != nil { // 9 has ended
		t.Fatal(err)
	}
	file("self/mountinfo", fmt.Sprintf("30 23 0:4 net:[4026532000] %s rw - nsfs nsfs rw\n"+
		"31 23 0:4 mnt:[4026532001] %s rw - nsfs nsfs rw\n", third, filepath.Join(proc, "not a network")))
	v := &Inventory{proc: proc}
	paths := func() []string {
		list, err := v.namespaces()
		if err != nil {
			t.Error(err)
		}
		var out []string
		for _, n := range list {
			out = append(out, n.path)
		}
		slices.Sort(out)
		return out
	}
	if got := paths(); !slices.Equal(got, []string{other, third}) {
		t.Errorf("%q, want %q and %q", got, other, third)
	}
	if err := os.Symlink("loop", filepath.Join(proc, "loop")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(proc, "loop"), filepath.Join(proc, "9/ns/net")); err != nil {
		t.Fatal(err)
	}
	if list, err := v.namespaces(); err == nil || len(list) != 2 || !strings.Contains(err.Error(), "of 1 processes") {
		t.Errorf("with a process that may not be looked at: %v, %v", list, err)
	}
	if err := os.Symlink("/proc/thread-self/net", filepath.Join(proc, "9/net")); err != nil {
		t.Fatal(err)
	}
	if got := paths(); !slices.Equal(got, []string{other, third}) { // process 9 is in this thread's namespace
		t.Errorf("%q, want %q and %q", got, other, third)
	}
	v.proc = filepath.Join(proc, "none")
	if _, err := v.namespaces(); err == nil {
		t.Error("without /proc there is no error")
	}
}

func TestWithoutPrivilege(t *testing.T) {
	root(t)
	// This thread gives up its capabilities, and ends with the test.
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	v, err := Open(Options{})
	if err == nil {
		v.Close()
		t.Fatal("opened without any capability")
	}
	if fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" || !errors.Is(err, feature.ErrMissing) ||
		!errors.Is(err, unix.EPERM) {
		t.Errorf("without capabilities: %v (exit code %d, hint %q)", err, fault.CodeOf(err), fault.HintOf(err))
	}
	_, err = EnableStats()
	if fault.CodeOf(err) != fault.Machine || !errors.Is(err, feature.ErrMissing) {
		t.Errorf("statistics without capabilities: %v", err)
	}
}

func TestFeatures(t *testing.T) {
	root(t)
	for _, p := range Features() {
		s := p.Status()
		t.Logf("%-16s %-5v %s", s.Name, s.Available, s.Detail)
		if s.Name == "" || s.Needs == "" || s.Lost == "" || s.Detail == "" || !s.Available && s.Hint == "" {
			t.Errorf("%+v does not say everything", s)
		}
	}
}
