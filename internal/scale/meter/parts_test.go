package meter

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/witness"
	"tare/internal/scale/ledger"
	"tare/test/busy"
	"tare/test/rights"
)

// partly opens a meter that need not be whole, on a machine where root can read all parts.
func partly(t *testing.T, o Options) *Meter {
	t.Helper()
	asRoot(t)
	m, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// asRoot skips a test if it cannot give up rights, or if the machine has no parts to lose. Probes are cached for the
// whole process, so it runs them before rights are given up.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, p := range slices.Concat(bpf.Features()[:1], perf.Features(), witness.Features()) {
		if err := p.Err(); err != nil && (p == perf.Sampling || p == witness.Witnessing || p.Name() == "bpf-syscall") {
			t.Skipf("needs a machine with all parts: %v", err)
		}
	}
}

// closed closes a window, and returns the ledger and the parts that failed.
func closed(t *testing.T, w *Window) (l *ledger.Ledger, failed string) {
	t.Helper()
	l, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return l, failedParts(w)
}

func failedParts(w *Window) string {
	var names []string
	for _, p := range w.Parts() {
		if p.Err != nil {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, " ")
}

// codes returns those of the given codes that the ledger's warnings have.
func codes(l *ledger.Ledger, of ...string) string {
	var found []string
	for _, w := range l.Warnings {
		if slices.Contains(of, w.Code) {
			found = append(found, w.Code)
		}
	}
	return strings.Join(found, " ")
}

func messageOf(l *ledger.Ledger, code string) string {
	i := slices.IndexFunc(l.Warnings, func(w ledger.Warning) bool { return w.Code == code })
	if i < 0 {
		return ""
	}
	return l.Warnings[i].Message
}

var partCodes = []string{"no-programs", "no-maps", "no-samples", "no-witness", "no-statistics"}

// hasLine reports whether the budget has a line.
func hasLine(l *ledger.Ledger, name string) bool {
	return slices.ContainsFunc(l.CPU.Lines, func(line ledger.CPULine) bool { return line.Name == name })
}

// checkGroups checks that CPU time and memory are complete.
func checkGroups(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	counted, held := 0, 0
	for _, c := range l.Cgroups {
		if c.CPUSeconds != nil {
			counted++
		}
		if c.Memory != nil {
			held++
		}
	}
	if !l.CPU.Closes() || l.CPU.Capacity <= 0 || counted == 0 || held == 0 || !hasLine(l, ledger.LineGroups) {
		t.Errorf("of %d groups %d have CPU time and %d memory; %+v", len(l.Cgroups), counted, held, l.CPU)
	}
}

// checkNoPrograms checks that what depends on programs is nil, not 0.
func checkNoPrograms(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	if l.Programs != nil || l.CPU.BPFUnsplit != nil || hasLine(l, ledger.LineBPF) || l.Self.BPFSeconds != nil ||
		l.Self.StatsSeconds != nil {
		t.Errorf("it claims to know programs: %v, %+v, %+v", l.Programs, l.CPU, l.Self)
	}
	for _, c := range l.Cgroups {
		if c.BPFSeconds != nil || c.BPFInsideSeconds != nil {
			t.Errorf("the group %s has eBPF time", c.Path)
		}
	}
}

// Without any capability, a ledger has CPU time and memory, and warnings say what it lacks. A meter that must be whole
// fails to open.
func TestWithoutCapabilities(t *testing.T) {
	asRoot(t)
	var l *ledger.Ledger
	var parts []Part
	var refused, err error
	rights.Without(t, func() {
		_, refused = New(t.Context(), Options{Whole: true})
		var m *Meter
		if m, err = New(t.Context(), Options{}); err != nil {
			return
		}
		var w *Window
		if w, err = m.Open(); err == nil {
			burn(50 * time.Millisecond)
			l, err = w.Close()
			parts = w.Parts()
		}
		err = errors.Join(err, m.Close())
	})
	if fault.CodeOf(refused) != fault.Machine || !errors.Is(refused, feature.ErrMissing) ||
		!strings.Contains(fault.HintOf(refused), "CAP_SYS_ADMIN") {
		t.Errorf("one that must be whole: %v", refused)
	}
	if err != nil {
		t.Fatal(err)
	}
	checkGroups(t, l)
	checkNoPrograms(t, l)
	if l.Maps != nil || l.Self.BPFBytes != nil || l.Noise != nil || l.Host.Sampler != "" || l.Self.CPUSeconds < 0.05 {
		t.Errorf("it claims to know more than it can: %v, %+v, %+v", l.Maps, l.Self, l.Host)
	}
	if got := codes(l, partCodes...); got != "no-programs no-samples no-witness" {
		t.Errorf("warnings %s", got)
	}
	if text := messageOf(l, "no-programs"); !strings.HasSuffix(text, "; run as root, or with CAP_SYS_ADMIN") {
		t.Errorf("no hint is in the warning %q", text)
	}
	text, err := json.Marshal(l)
	if err != nil || !strings.Contains(string(text), `"programs":null,"maps":null,`) {
		t.Errorf("%v: %.300s", err, text)
	}
	var names []string
	for _, p := range parts {
		names = append(names, p.Name)
		if read := p.Name == PartCPU || p.Name == PartMemory; read != (p.Took > 0) || p.Name != PartCPU &&
			p.Name != PartMemory && p.Err == nil {
			t.Errorf("%+v", p)
		}
	}
	if got := strings.Join(names, " "); got != "cpu memory programs maps samples witness" {
		t.Errorf("parts %s", got)
	}
}

// Parts returns how long each part took, and leaves out disabled parts.
func TestParts(t *testing.T) {
	w, err := partly(t, Options{}).Open()
	if err != nil {
		t.Fatal(err)
	}
	l, failed := closed(t, w)
	groups := codes(l, "group-unread") != "" // this can concern groups of others
	if failed != "" && !groups || codes(l, partCodes...) != "" || l.Programs == nil || l.Maps == nil {
		t.Errorf("failed: %s; warnings %+v", failed, l.Warnings)
	}
	all := time.Duration(0)
	for _, p := range w.Parts() {
		if all += p.Took; p.Took <= 0 || p.Took > time.Minute {
			t.Errorf("%s took %v", p.Name, p.Took)
		}
	}
	few, err := partly(t, Options{SampleHz: -1, NoWitness: true}).Open()
	if err != nil {
		t.Fatal(err)
	}
	closed(t, few)
	if len(w.Parts()) != 6 || len(few.Parts()) != 4 {
		t.Errorf("parts %+v, without samples and witness %+v", w.Parts(), few.Parts())
	}
}

// If programs cannot be read at one edge, the ledger lacks programs and maps, and no other lines.
func TestProgramsThatCannotBeRead(t *testing.T) {
	m := partly(t, Options{})
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	burn(50 * time.Millisecond)
	var l *ledger.Ledger
	rights.Without(t, func() { l, err = w.Close() })
	if err != nil {
		t.Fatal(err)
	}
	checkGroups(t, l)
	checkNoPrograms(t, l)
	if l.Maps != nil || l.Self.BPFBytes != nil || l.Noise == nil || l.Self.Samples == 0 {
		t.Errorf("maps %v, noise %v, self %+v", l.Maps, l.Noise, l.Self)
	}
	if got := codes(l, partCodes...); got != "no-programs" || !strings.Contains(failedParts(w), "programs maps") ||
		!strings.Contains(messageOf(l, "no-programs"), "operation not permitted") {
		t.Errorf("warnings %s, failed %s", got, failedParts(w))
	}
	if l := ledgerOf(t, m, func() {}); l.Programs == nil || l.Maps == nil || codes(l, partCodes...) != "" {
		t.Errorf("the window after that: %d programs, %d maps, %+v", len(l.Programs), len(l.Maps), l.Warnings)
	}

	whole := meter(t, Options{SampleHz: -1, NoWitness: true})
	if w, err = whole.Open(); err != nil {
		t.Fatal(err)
	}
	rights.Without(t, func() { _, err = w.Close() })
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		t.Errorf("of a meter that must be whole: %v", err)
	}
}

// If programs cannot be read at an edge that two windows share, both windows lack them, and no third does.
func TestProgramsThatCannotBeReadAtASharedEdge(t *testing.T) {
	m := partly(t, Options{SampleHz: -1, NoWitness: true})
	p, id := planted(t)
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	var last time.Time
	for i, known := range []bool{true, false, false, true} {
		if err := busy.Run(p, 1000); err != nil {
			t.Fatal(err)
		}
		var l *ledger.Ledger
		var next *Window
		step := func() { l, next, err = w.Next(true, nil) }
		if i == 1 {
			rights.Without(t, step)
		} else {
			step()
		}
		if err != nil {
			t.Fatal(err)
		}
		if w = next; !last.IsZero() && !l.Window.Start.Equal(last) {
			t.Errorf("window %d does not begin where the one before it ended", i)
		}
		last = l.Window.End
		checkGroups(t, l)
		if !known {
			checkNoPrograms(t, l)
			continue
		}
		if found := program(l, id); found == nil || known != (found.RunCount != nil && *found.RunCount == 1000) {
			t.Errorf("window %d: %+v", i, found)
		}
	}
	closed(t, w)
}

// spoil replaces open files of this process with one that cannot be read. It finds them by the name in /proc/self/fd.
// The function that it returns restores them.
func spoil(t *testing.T, name string) (back func()) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var those []int // listed before copies are made
	for _, f := range files {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err != nil || to != name {
			continue
		}
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		those = append(those, fd)
	}
	kept := map[int]int{} // copies by descriptor
	for _, fd := range those {
		if kept[fd], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	if len(kept) == 0 {
		t.Fatalf("this process has no file %s", name)
	}
	return func() {
		for fd, copied := range kept {
			if err := errors.Join(unix.Dup3(copied, fd, unix.O_CLOEXEC), unix.Close(copied)); err != nil {
				t.Error(err)
			}
		}
	}
}

const (
	eventFile = "anon_inode:[perf_event]"
	mapFile   = "anon_inode:bpf-map"
)

// A part whose files fail loses its own lines for as long as they fail.
func TestPartsThatFail(t *testing.T) {
	for _, c := range []struct {
		part, file, code string
		o                Options
		lost             func(*ledger.Ledger) bool
	}{
		{PartSamples, eventFile, "no-samples", Options{NoWitness: true}, func(l *ledger.Ledger) bool {
			return l.Self.Samples == 0 && l.Host.Sampler == "" && l.Host.SamplerPeriod == nil
		}},
		{PartWitness, mapFile, "no-witness", Options{SampleHz: -1}, func(l *ledger.Ledger) bool {
			return l.Noise == nil && l.CPU.IdleStolen == nil && l.Self.WitnessSeconds == nil
		}},
	} {
		t.Run(c.part, func(t *testing.T) {
			m := partly(t, c.o)
			w, err := m.Open()
			if err != nil {
				t.Fatal(err)
			}
			// A good window; the one in which the files begin to fail; one in which they fail throughout; one that begins with
			// failing files and ends with good ones; a good one.
			var back func()
			for i, lost := range []bool{false, true, true, true, false} {
				switch i {
				case 1:
					back = spoil(t, c.file)
				case 3:
					back()
				}
				l, next, err := w.Next(true, nil)
				if err != nil {
					t.Fatal(err)
				}
				failed := strings.Contains(failedParts(w), c.part)
				if c.lost(l) != lost || failed != lost || (codes(l, partCodes...) == c.code) != lost {
					t.Errorf("window %d: lost %v, want %v; failed %q; %+v", i, c.lost(l), lost, failedParts(w), l.Warnings)
				}
				checkGroups(t, l)
				if l.Programs == nil || l.Maps == nil {
					t.Errorf("window %d lost programs or maps as well: %+v", i, l.Warnings)
				}
				if late := codes(l, "late-samples") != ""; late != (i > 1) {
					t.Errorf("window %d says that it began late: %v", i, late)
				}
				w = next
				burn(50 * time.Millisecond)
			}
			l, failed := closed(t, w)
			if c.lost(l) || failed != "" || codes(l, "late-samples") != "" {
				t.Errorf("a window after all was well again: %q, %+v", failed, l.Warnings)
			}
			// A window that is opened, not continued.
			back = spoil(t, c.file)
			l = ledgerOf(t, m, func() {})
			back()
			if !c.lost(l) || codes(l, partCodes...) != c.code {
				t.Errorf("opened without: %+v", l.Warnings)
			}
			if l = ledgerOf(t, m, func() { burn(50 * time.Millisecond) }); c.lost(l) {
				t.Errorf("opened again: %+v", l.Warnings)
			}
		})
	}
}

// If the kernel refuses statistics, programs have no run time.
func TestStatisticsThatAreRefused(t *testing.T) {
	m := partly(t, Options{NoStatistics: true, SampleHz: -1, NoWitness: true})
	m.uncounted = false
	noMoreFiles(t, func() {
		if err := m.openStatistics(); err != nil {
			t.Error(err)
		}
	})
	l := ledgerOf(t, m, func() {})
	if got := codes(l, partCodes...); got != "no-statistics" || !strings.Contains(messageOf(l, got), "ulimit -n") ||
		hasLine(l, ledger.LineBPF) || l.Self.BPFSeconds != nil || l.Programs == nil {
		t.Errorf("warnings %+v, lines %+v, self %+v", l.Warnings, l.CPU.Lines, l.Self)
	}
	for _, p := range l.Programs {
		if p.RunCount != nil || p.RunSeconds != nil {
			t.Errorf("program %d has run: %+v", p.ID, p)
		}
	}
	m.uncounted, m.whole = false, true
	noMoreFiles(t, func() {
		if err := m.openStatistics(); !errors.Is(err, unix.EMFILE) {
			t.Errorf("of a meter that must be whole: %v", err)
		}
	})
}

// noMoreFiles calls do while this process may open no file.
func noMoreFiles(t *testing.T, do func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	do()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
}

// A group whose files may not be read is named in a warning, and what it used is nil and on no line.
func TestGroupsThatMayNotBeRead(t *testing.T) {
	asRoot(t)
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/tare-parts-%d", os.Getpid())
	for i := range layout.Hierarchies {
		h := &layout.Hierarchies[i]
		dir := filepath.Join(h.Mount, path)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		for _, name := range []string{"cpuacct.usage", "cpu.stat", "memory.stat", "memory.current",
			"memory.usage_in_bytes"} {
			if err := os.Chmod(filepath.Join(dir, name), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	var w *Window
	var l *ledger.Ledger
	weigh := func(o Options) error {
		m, err := New(t.Context(), o)
		if err != nil {
			return err
		}
		if w, err = m.Open(); err == nil {
			l, err = w.Close()
		}
		return errors.Join(err, m.Close())
	}
	rights.Without(t, func() { err = weigh(Options{SampleHz: -1, NoWitness: true}) })
	if err != nil {
		t.Fatal(err)
	}
	checkGroups(t, l)
	i := slices.IndexFunc(l.Cgroups, func(c ledger.Cgroup) bool { return c.Path == path })
	if i < 0 {
		t.Fatalf("the ledger does not have the group %s", path)
	}
	if c := l.Cgroups[i]; c.CPUSeconds != nil || c.Memory != nil && c.Memory.Hard != nil {
		t.Errorf("what may not be read is known: %+v, %+v", c, c.Memory)
	}
	if text := messageOf(l, "group-unread"); !strings.Contains(text, "CAP_DAC_READ_SEARCH") {
		t.Errorf("the warning of groups is %q", text)
	}
	for _, p := range w.Parts()[:2] {
		if !errors.Is(p.Err, unix.EACCES) {
			t.Errorf("part %s: %v", p.Name, p.Err)
		}
	}
	if _, v2 := layout.Controller("cpuacct"); v2 == hasLine(l, ledger.LineRoot) {
		t.Errorf("the root group's line is what a counter of all leaves: %+v", l.CPU.Lines)
	}

	m := meter(t, Options{SampleHz: -1, NoWitness: true})
	rights.Without(t, func() { _, err = m.readEdge() })
	if !errors.Is(err, unix.EACCES) || !strings.Contains(fault.HintOf(err), "CAP_DAC_READ_SEARCH") {
		t.Errorf("of a meter that must be whole: %v", err)
	}
}

// Hidden kernel threads have no line, and a warning says so.
func TestKernelThreadsThatAreHidden(t *testing.T) {
	asRoot(t)
	var l *ledger.Ledger
	var err error
	rights.WithoutProc(t, func() {
		var m *Meter
		if m, err = New(t.Context(), Options{SampleHz: -1, NoWitness: true}); err != nil {
			return
		}
		var w *Window
		if w, err = m.Open(); err == nil {
			burn(50 * time.Millisecond)
			l, err = w.Close()
		}
		err = errors.Join(err, m.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	checkGroups(t, l)
	if hasLine(l, ledger.LineKernel) || !strings.Contains(messageOf(l, "kernel-hidden"), "hidepid") {
		t.Errorf("lines %+v, warnings %+v", l.CPU.Lines, l.Warnings)
	}
	if l := ledgerOf(t, partly(t, Options{SampleHz: -1, NoWitness: true}), func() {}); !hasLine(l, ledger.LineKernel) {
		t.Errorf("with all rights: %+v", l.CPU.Lines)
	}
}

// If the processes of the root group may not be listed, no line has their CPU time.
func TestRootGroupThatMayNotBeRead(t *testing.T) {
	asRoot(t)
	dir := t.TempDir()
	for at := dir; at != "/"; at = filepath.Dir(at) { // so that only the file is forbidden
		if err := os.Chmod(at, 0o755); at == dir && err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(at) == os.TempDir() {
			break
		}
	}
	procs := filepath.Join(dir, "cgroup.procs")
	if err := os.WriteFile(procs, []byte("1\n"), 0); err != nil {
		t.Fatal(err)
	}
	made := func(whole bool) *Meter {
		return &Meter{whole: whole, kernel: &proc.KernelThreads{}, groups: &cgroup.Reader{}, layout: &cgroup.Layout{
			Mode: cgroup.ModeV2, Hierarchies: []cgroup.Hierarchy{{Mount: dir, V2: true}}}}
	}
	m, whole := made(false), made(true)
	var err, refused error
	var read map[int]time.Duration
	rights.Without(t, func() {
		err, refused = m.findRoot(), whole.findRoot()
		read, _ = m.readRoot()
	})
	if err != nil || read != nil || len(m.warnings) != 1 || m.warnings[0].Code != "no-root-usage" {
		t.Errorf("%v, read %v, warnings %+v", err, read, m.warnings)
	}
	if !errors.Is(refused, os.ErrPermission) {
		t.Errorf("of a meter that must be whole: %v", refused)
	}
	a := account{m: m, w: newWindow(m)}
	a.last.at, a.last.stat.Online = int64(time.Second), []proc.CPUTime{{CPU: 0}}
	a.w.first.stat = a.last.stat
	a.last.root = map[int]time.Duration{1: time.Second}
	l := &ledger.Ledger{}
	if l.CPU = a.budget(l); hasLine(l, ledger.LineRoot) || l.CPU.Unexplained != 1 {
		t.Errorf("%+v", l.CPU)
	}
}

// If maps could not be listed, they and the memory of the meter's own objects are nil; programs are known.
func TestMapsThatCannotBeRead(t *testing.T) {
	own := bpf.Program{ID: 1, Own: true}
	m := &Meter{layout: &cgroup.Layout{}, groups: &cgroup.Reader{}}
	a := account{m: m, w: newWindow(m), programs: []bpf.Program{own},
		snapshot: &bpf.Snapshot{Programs: []bpf.Program{own}, MapsErr: unix.ENOMEM}}
	a.failed()
	if maps, programs, s := a.bpfMaps(), a.bpfPrograms(), a.self(); maps != nil || len(programs) != 1 ||
		s.BPFBytes != nil || s.BPFSeconds == nil {
		t.Errorf("maps %v, programs %v, self %+v", maps, programs, s)
	}
	if len(a.warnings) != 1 || a.warnings[0].Code != "no-maps" || !strings.Contains(a.warnings[0].Message, "memory") {
		t.Errorf("warnings %+v", a.warnings)
	}
}

// If programs cannot be listed but their counters can be read, their run time is in the ledger, with the holders of the
// last listing. If they were never listed, holders are unknown, and the next window lists programs even without being
// asked to.
func TestListingFails(t *testing.T) {
	m := partly(t, Options{SampleHz: -1, NoWitness: true})
	p, id := planted(t)
	w, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	list := m.list
	never := true
	for i, failing := range []bool{true, false, true, false} {
		m.list = list
		if failing {
			m.list = func() (*bpf.Snapshot, error) { return nil, unix.ENOMEM }
		}
		if err := busy.Run(p, 1000); err != nil {
			t.Fatal(err)
		}
		l, next, err := w.Next(!never || failing, nil)
		if err != nil {
			t.Fatal(err)
		}
		never = never && failing
		want, warns := "", ""
		if failing {
			want, warns = "programs maps", "stale-programs"
		}
		if got := failedParts(w); got != want {
			t.Errorf("window %d: %q failed, want %q", i, got, want)
		}
		if got := codes(l, "no-programs", "no-maps", "stale-programs"); got != warns {
			t.Errorf("window %d warns: %q, want %q", i, got, warns)
		}
		found := program(l, id)
		if found == nil || found.RunCount == nil || *found.RunCount != 1000 || (len(found.Owners) == 0) != never ||
			(l.Maps == nil) != never || strings.Contains(messageOf(l, "stale-programs"), "not known") != never {
			t.Errorf("window %d has %+v and maps %v, want 1000 runs; never listed: %v; warnings %+v", i, found, l.Maps, never,
				l.Warnings)
		}
		w = next
	}
	if err := w.Discard(); err != nil {
		t.Error(err)
	}
}
