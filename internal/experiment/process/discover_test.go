package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
	"tare/test/vm/guest"
)

// ids returns the ids of objects, negative if no process of the command holds them.
func ids(all []Object) []int {
	list := []int{}
	for _, o := range all {
		id := int(o.ID)
		if !o.Held {
			id = -id
		}
		list = append(list, id)
	}
	return list
}

// TestObjectsOf: objects held by a command's processes belong to the command. So does an object that no process holds,
// if it was created after the command started and nobody else uses it.
func TestObjectsOf(t *testing.T) {
	guest.KernelFree(t)
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	before, after := began.Add(-time.Hour), began.Add(time.Second)
	mine, other := []ledger.Owner{{PID: 8}, {PID: 20}}, []ledger.Owner{{PID: 8}}
	l := &ledger.Ledger{
		Programs: []ledger.Program{
			{ID: 1, Owners: mine, LoadedAt: &before}, // held by the command, but loaded before it
			{ID: 2, Owners: mine, LoadedAt: &after},
			{ID: 3, Owners: other, LoadedAt: &after},
			{ID: 4, LoadedAt: &after}, // pinned
			{ID: 5, LoadedAt: &before},
			{ID: 6, LoadedAt: &after, Unloaded: true},
			{ID: 7, LoadedAt: &after, Own: true},
			{ID: 8, Owners: mine, Own: true},
			{ID: 9}, // load time unknown
		},
		Maps: []ledger.Map{
			{ID: 40, UsedBy: []uint32{4}}, // used only by the pinned program
			{ID: 41, UsedBy: []uint32{4, 3}},
			{ID: 42, HeldBy: mine, UsedBy: []uint32{3}},
			{ID: 43, HeldBy: other, UsedBy: []uint32{2}},
			{ID: 44}, // pinned, and used by nobody
			{ID: 45},
			{ID: 46, HeldBy: mine, Inner: []uint32{45, 47}},
			{ID: 47},
			{ID: 48, HeldBy: other, Inner: []uint32{47}}, // shares map 47 with another holder
			{ID: 49, UsedBy: []uint32{5}},
		},
	}
	o := ObjectsOf(proc.FS{}, l, []int{20, 21}, began)
	if got, want := ids(o.Programs), []int{1, 2, -4}; !slices.Equal(got, want) {
		t.Errorf("its programs are %v, want %v", got, want)
	}
	if got, want := ids(o.Maps), []int{-40, 42, -45, 46}; !slices.Equal(got, want) {
		t.Errorf("its maps are %v, want %v", got, want)
	}
	o = ObjectsOf(proc.FS{}, l, []int{20}, time.Time{})
	if got, want := ids(o.Programs), []int{1, 2}; !slices.Equal(got, want) {
		t.Errorf("of one that was there before, the programs are %v, want %v", got, want)
	}
	if got := ObjectsOf(proc.FS{}, &ledger.Ledger{}, nil, began); got.Programs == nil || got.Maps == nil {
		t.Error("none is written as null")
	}
}

// loaded loads a program that uses a map, and returns copies of their descriptors for another process.
func loaded(t *testing.T, name string) (*ebpf.Program, *ebpf.Map, []*os.File) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("needs to load eBPF programs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	var files []*os.File
	for _, fd := range []int{p.FD(), m.FD()} {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(copied), name))
		t.Cleanup(func() { _ = files[len(files)-1].Close() })
	}
	return p, m, files
}

// TestDiscover: on a real kernel, a command's processes are found in whatever groups they are, with the program and the
// map that one of them holds, and with a program that it left pinned.
func TestDiscover(t *testing.T) {
	g := group(t)
	_, _, theirs := loaded(t, "command_held")
	const script = `setsid unshare --fork --mount sh -c 'touch ready; exec sleep 60' & echo $! > pid; exec sleep 61`
	c := options(t, param.Values{"dir": "{dir}", "command": "sh -c " + quote(script), "ready-file": "ready"})
	c.CgroupDir = dirOf(t, g)
	began := time.Now()
	r, err := Start(c, func(cmd *exec.Cmd) error {
		cmd.ExtraFiles = theirs
		return g.Start(cmd)
	}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	mustBeReady(t, r)
	child := pidIn(t, filepath.Join(c.Dir, "pid"))
	pin(t)

	m, err := meter.New(t.Context(), meter.Options{SampleHz: -1, NoStatistics: true, NoWitness: true, Whole: true})
	if errors.Is(err, feature.ErrMissing) || fault.CodeOf(err) == fault.Machine {
		t.Skipf("needs a machine that can be weighed: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	l, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	found, err := Discover(proc.FS{}, g.Members(), nil, true, l, began)
	if err != nil {
		t.Fatal(err)
	}
	has := func(pid int) bool {
		return slices.ContainsFunc(found.Processes, func(p Process) bool { return p.PID == pid && p.RSS > 0 && !p.Outside })
	}
	if !has(r.PID()) || !has(child) || len(found.Processes) != 3 || found.RSS == 0 || found.RSSPeak < found.RSS {
		t.Errorf("its processes are %+v, want %d, %d and its child", found, r.PID(), child)
	}
	// This test's process holds the same objects, which still belong to the command.
	for what, objects := range map[string][]Object{"programs": found.Programs, "maps": found.Maps} {
		if !slices.ContainsFunc(objects, func(o Object) bool { return o.Name == "command_held" && o.Held }) {
			t.Errorf("its %s are %+v, without command_held", what, objects)
		}
	}
	for what, objects := range map[string][]Object{"programs": found.Programs, "maps": found.Maps} {
		if !slices.ContainsFunc(objects, func(o Object) bool { return o.Name == "command_pin" && !o.Held }) {
			t.Errorf("its %s are %+v, without the pinned command_pin", what, objects)
		}
	}
}

// pin pins a program in bpffs that no process holds.
func pin(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("needs to mount bpffs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	p, m, files := loaded(t, "command_pin")
	if err := p.Pin(filepath.Join(dir, "pinned")); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	_ = p.Close()
	_ = m.Close()
}

// TestReplaced: a program that was unloaded inside the window, after the command had loaded another with the same name
// and type, belonged to the command: its run time counts, or is unknown. One that was loaded later, has another type,
// or was unloaded without a replacement did not.
func TestReplaced(t *testing.T) {
	start := time.Now()
	at := func(seconds int) *time.Time { return new(start.Add(time.Duration(seconds) * time.Second)) }
	mine := []ledger.Owner{{PID: 7, Comm: "x"}}
	l := &ledger.Ledger{Window: ledger.Window{Start: start, Seconds: 2}, Programs: []ledger.Program{
		{ID: 1, Name: "a", Type: "xdp", LoadedAt: at(-5), Unloaded: true},
		{ID: 2, Name: "a", Type: "xdp", LoadedAt: at(1), Owners: mine},
		{ID: 3, Name: "a", Type: "kprobe", LoadedAt: at(-5), Unloaded: true},
		{ID: 4, Name: "b", Type: "xdp", LoadedAt: at(-5), Unloaded: true},
		{ID: 5, Name: "c", Type: "xdp", LoadedAt: at(-9), Owners: mine},
		{ID: 6, Name: "c", Type: "xdp", LoadedAt: at(-10), Unloaded: true}, // its namesake was loaded before
		{ID: 7, Name: "a", Type: "xdp", LoadedAt: at(2), Unloaded: true},
	}}
	want := []Object{{ID: 2, Name: "a", Held: true}, {ID: 5, Name: "c", Held: true}, {ID: 1, Name: "a", Replaced: true}}
	if got := ObjectsOf(proc.FS{}, l, []int{7}, time.Time{}).Programs; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestEndedSince: what a process held at the edge belongs to the command if the process did then, although it has ended
// since. If it is unknown whether a process that has ended belonged to the command, the command's objects may be
// incomplete.
func TestEndedSince(t *testing.T) {
	old := exec.Command("true")
	if err := old.Run(); err != nil {
		t.Fatal(err)
	}
	ended, living := old.Process.Pid, os.Getpid()
	loaded := time.Now()
	for name, c := range map[string]struct {
		holders, atEdge []int
		began           time.Time
		found           int
		incomplete      bool
	}{
		"the command's":                   {[]int{ended}, []int{ended}, time.Time{}, 1, false},
		"unknown":                         {[]int{ended}, nil, time.Time{}, 0, true},
		"unknown, of a younger object":    {[]int{ended}, nil, loaded, 0, true},
		"unknown, of an older object":     {[]int{ended}, nil, loaded.Add(time.Second), 0, false},
		"unknown, and somebody else's":    {[]int{ended, living}, nil, time.Time{}, 0, false},
		"somebody else's, and still runs": {[]int{living}, nil, time.Time{}, 0, false},
	} {
		var owners []ledger.Owner
		for _, pid := range c.holders {
			owners = append(owners, ledger.Owner{PID: pid})
		}
		for what, l := range map[string]*ledger.Ledger{
			"program": {Programs: []ledger.Program{{ID: 7, Owners: owners, LoadedAt: &loaded}}},
			"map": {Maps: []ledger.Map{{ID: 7, HeldBy: owners, UsedBy: []uint32{8}}},
				Programs: []ledger.Program{{ID: 8, Owners: []ledger.Owner{{PID: living}}, LoadedAt: &loaded}}},
		} {
			found, err := Discover(proc.FS{}, nil, c.atEdge, true, l, c.began)
			if n := len(found.Programs) + len(found.Maps); err != nil || n != c.found || found.Incomplete != c.incomplete {
				t.Errorf("a %s of a process that is %s: %+v, %v", what, name, found, err)
			}
		}
	}
}

// TestUnheld: a program that no process holds and that ran may belong to an observed program. One that did not run,
// that is Tare's, or with which container engines guard devices does not count.
func TestUnheld(t *testing.T) {
	runs := func(n uint64) *uint64 { return &n }
	l := &ledger.Ledger{Programs: []ledger.Program{
		{Name: "cil_from_netdev", Type: "sched_cls", RunCount: runs(7)},
		{Name: "cil_from_netdev", Type: "sched_cls", RunCount: runs(9)},
		{Name: "not_counted", Type: "xdp"},
		{Name: "idle", Type: "xdp", RunCount: runs(0)},
		{Name: "own", Type: "xdp", RunCount: runs(1), Own: true},
		{Name: "held", Type: "xdp", RunCount: runs(1), Owners: []ledger.Owner{{PID: 1}}},
		{Name: "gone", Type: "xdp", Unloaded: true},
		{Name: "", Type: "cgroup_device", RunCount: runs(3)},
	}}
	if got, want := unheld(l), []string{"cil_from_netdev", "not_counted"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
