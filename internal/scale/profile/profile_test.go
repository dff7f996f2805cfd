package profile

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	encoding "encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	pprof "github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/ksym"
	"tare/internal/scale/ledger"
	"tare/test/binary"
)

// named implements Symbols with invented names.
type named struct{}

func (named) Kernel(addresses []uint64) ([]string, error) {
	names := make([]string, len(addresses))
	for i, a := range addresses {
		switch {
		case a < 0x1000:
			names[i] = "tcp_sendmsg"
		case a < 0x2000:
			names[i] = "bpf_prog_0123456789abcdef_my_connect4"
		case a < 0x3000:
			names[i] = "bpf_prog_0123456789abcdef"
		}
	}
	return names, nil
}
func (named) User(m *Mapping, offset uint64) string {
	if offset >= 0x900 {
		return ""
	}
	return m.Path + "!f"
}
func (named) Find(*Process, *Mapping) string { return "abcd" }

// stacksOf formats each sample: its functions, outermost first, its values and its labels.
func stacksOf(p *pprof.Profile) (all []string) {
	for _, s := range p.Sample {
		var names []string
		for _, l := range s.Location {
			name := "?"
			if len(l.Line) > 0 {
				name = l.Line[0].Function.Name
			}
			names = append(names, name)
		}
		slices.Reverse(names)
		all = append(all, strings.Join(names, ";"))
	}
	return all
}

// TestBuild: a group's time is divided among its stacks by samples and adds up; programs and files have their names,
// and unknown code is shown as such.
func TestBuild(t *testing.T) {
	web := &Process{PID: 7, Comm: "web\x1b[2J", Mappings: []Mapping{
		{Start: 0x10000, End: 0x20000, Offset: 0, Path: "/bin/web", Device: "fe:00", Inode: 5},
	}}
	w := &Window{Start: time.Unix(100, 0), Length: time.Second, Period: 10 * time.Millisecond, Stacks: []Stack{
		{Process: web, Group: "/a", User: []uint64{0x10100, 0x10201}, Count: 2},
		{Process: web, Group: "/a", Kernel: []uint64{0x1500, 0x501}, User: []uint64{0x10100}, Count: 1},
		{Process: web, Group: "/b", Kernel: []uint64{0x2500, 0x5000}, User: []uint64{0x10901, 0x1, 0x2}, Count: 4},
		{Kernel: []uint64{0x500}, Count: 1},
	}}
	w.Lost, w.Left, w.Hidden, w.Unread = 3, 2, 1, 4
	groups := map[string]Group{
		"/a": {Seconds: new(0.1), Labels: map[string]string{"charge": "workload", "component": ""}},
		"/c": {Seconds: new(0.25)}, "/d": {Seconds: new(0.0)}, "/e": {},
	}
	p, err := Build(w, named{}, groups, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/bin/web!f;/bin/web!f", "/bin/web!f;tcp_sendmsg;bpf:my_connect4", "[unknown];?;[kernel];bpf:0123456789abcdef",
		"tcp_sendmsg", "[not sampled]",
	}
	if got := stacksOf(p); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var values [][]int64
	for _, s := range p.Sample {
		values = append(values, s.Value)
	}
	if want := [][]int64{{2, 66666667}, {1, 33333333}, {4, 40e6}, {1, 0}, {0, 250e6}}; !reflect.DeepEqual(values, want) {
		t.Errorf("values are %v, want %v", values, want)
	}
	if want := map[string][]string{"comm": {`web\x1b[2J`}, "group": {"/a"}, "charge": {"workload"}}; !reflect.DeepEqual(
		p.Sample[0].Label, want) {
		t.Errorf("labels are %v", p.Sample[0].Label)
	}
	comments := []string{"lost samples: 3", "samples of stacks beyond the most that are kept: 2",
		"samples of processes outside Tare's PID namespace: 1",
		"samples of processes without a name, of which there were too many to read: 4",
		"samples of no known control group, which have no CPU time: 1"}
	if !slices.Equal(p.Comments, comments) {
		t.Errorf("comments: %q", p.Comments)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	if read, err := pprof.Parse(&b); err != nil || !slices.Equal(stacksOf(read), want) {
		t.Errorf("it is read as %v, %v", read, err)
	}
}

func TestParseMaps(t *testing.T) {
	all := parseMaps([]byte(`00400000-00452000 r-xp 00000000 fe:00 173521      /usr/bin/a program
00452000-00453000 rw-p 00052000 fe:00 173521      /usr/bin/a program
7f0000000000-7f0000001000 r-xp 00001000 fe:00 12 /lib/x.so (deleted)
7f0000000800-7f0000002000 r-xp 00001000 fe:00 12 /overlaps
zz-yy r-xp 0 0 0 x
7fff00000000-7fff00001000 r-xp 00000000 00:00 0
7fff00001000-7fff00002000 r-xp 00000000 00:00 0                          [vdso]
`))
	want := []Mapping{
		{0x400000, 0x452000, 0, "/usr/bin/a program", "fe:00", 173521},
		{0x7f0000000000, 0x7f0000001000, 0x1000, "/lib/x.so (deleted)", "fe:00", 12},
		{0x7fff00000000, 0x7fff00001000, 0, "", "00:00", 0},
		{0x7fff00001000, 0x7fff00002000, 0, "[vdso]", "00:00", 0},
	}
	if !slices.Equal(all, want) {
		t.Errorf("%+v", all)
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add([]byte("00400000-00452000 r-xp 00000000 fe:00 173521      /usr/bin/a\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Process{Mappings: parseMaps(b)}
		last := uint64(0)
		for _, m := range p.Mappings {
			if m.Start < last || m.End <= m.Start || p.find(m.Start).Start != m.Start || !p.Has(m.End-1) {
				t.Fatalf("%+v", p.Mappings)
			}
			last = m.End
		}
	})
}

// TestCounter: the time of a group without a known counter is in the group above, and is counted once.
func TestCounter(t *testing.T) {
	w := &Window{Period: 10 * time.Millisecond, Stacks: []Stack{
		{Group: "/a/gone", Kernel: []uint64{1}, Count: 3}, {Group: "/a", Kernel: []uint64{1}, Count: 1},
		{Group: "/b/c", Kernel: []uint64{1}, Count: 2},
	}}
	p, err := Build(w, named{}, map[string]Group{"/a": {Seconds: new(0.4)}, "/a/gone": {}}, false)
	if err != nil {
		t.Fatal(err)
	}
	var ns []int64
	for _, s := range p.Sample {
		ns = append(ns, s.Value[1])
	}
	if !slices.Equal(ns, []int64{3e8, 1e8, 2e7}) {
		t.Errorf("%d", ns)
	}
}

// TestFiles: functions of Go programs are named by the symbol table or, in a stripped binary, by Go's own table. Tested
// with this test binary, both give the same names, and unknown addresses have no name.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	said := map[string]map[string]int{}
	for name, flags := range map[string]string{"symbols": "", "stripped": "-s -w"} {
		path := filepath.Join(dir, name)
		if err := binary.Program(path, "./test/kube/web", "-ldflags="+flags); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		o := &object{}
		o.read(f, new(uint64(maxAll)))
		f.Close()
		if o.buildID == "" || len(o.symbols) == 0 {
			t.Fatalf("%s: build id %q, %d symbols", name, o.buildID, len(o.symbols))
		}
		said[name] = map[string]int{}
		for _, p := range o.loads {
			for offset := p.Off; offset < p.Off+p.Filesz; offset += 16 {
				if n := o.name(offset); strings.HasPrefix(n, "main.") {
					said[name][n]++
				}
			}
		}
	}
	if said["symbols"]["main.main"] == 0 || len(said["symbols"]) != len(said["stripped"]) {
		t.Errorf("%v", said)
	}
	for name, n := range said["symbols"] { // in Go's table, padding after a function belongs to it
		if m := said["stripped"][name]; m < n || m > n+4 {
			t.Errorf("%s has %d sixteenths, and %d in a stripped binary", name, n, m)
		}
	}
	p, err := Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pc, _, _, _ := runtime.Caller(0)
	m := p.find(uint64(pc))
	if m == nil {
		t.Fatalf("this function is in none of %+v", p.Mappings)
	}
	symbols, nowhere := NewFiles(nil), &Mapping{Path: "/nowhere", Inode: 1}
	if symbols.Find(p, m) == "" || symbols.Find(p, nowhere) != "" {
		t.Error("build ids are wrong")
	}
	if got := symbols.User(m, uint64(pc)-m.Start+m.Offset); got != "tare/internal/scale/profile.TestFiles" {
		t.Errorf("this function is %q", got)
	}
	if symbols.User(m, math.MaxInt64) != "" || symbols.User(nowhere, 0) != "" ||
		symbols.User(&Mapping{Path: "[vdso]"}, 0) != "[vdso]" {
		t.Error("what is not known has a name")
	}
}

// TestEndedProcess: a process that has ended cannot show a file that is no longer at its path, but another process that
// has mapped it can. The functions of both have names, whichever was sampled first.
func TestEndedProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to open a deleted file that is mapped")
	}
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "program"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	code, err := unix.Mmap(int(f.Fd()), 0, len(b), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(code)
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	own, err := Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pc, _, _, _ := runtime.Caller(0)
	running := own.find(uint64(pc))
	address := uint64(uintptr(unsafe.Pointer(&code[0]))) + uint64(pc) - running.Start + running.Offset
	w := &Window{Period: 1e7}
	for pid := -2 * maxTries; pid < 0; pid++ { // no process has these
		w.Stacks = append(w.Stacks, Stack{Process: &Process{PID: pid, Mappings: own.Mappings}, User: []uint64{address}})
	}
	w.Stacks = append(w.Stacks, Stack{Process: own, User: []uint64{address}})
	p, err := Build(w, NewFiles(named{}.Kernel), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range stacksOf(p) {
		if want := "tare/internal/scale/profile.TestEndedProcess"; got != want {
			t.Errorf("stack %d is %q, want %q", i, got, want)
		}
	}
}

// elfOf returns an ELF file with the given table of section names, and with sections in body.
func elfOf(names string, body []byte, sections ...elf.Section64) []byte {
	all := []elf.Section64{{}, {Type: uint32(elf.SHT_STRTAB), Off: 64, Size: uint64(len(names))}}
	for _, s := range sections {
		s.Off = 64 + uint64(len(names))
		all = append(all, s)
	}
	h := elf.Header64{Type: uint16(elf.ET_DYN), Version: uint32(elf.EV_CURRENT), Ehsize: 64, Phentsize: 56,
		Shoff: 64 + uint64(len(names)+len(body)), Shentsize: 64, Shnum: uint16(len(all)), Shstrndx: 1}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	h.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	b, _ := encoding.Append(nil, encoding.LittleEndian, h)
	b = slices.Concat(b, []byte(names), body)
	b, _ = encoding.Append(b, encoding.LittleEndian, all)
	return b
}

// counted counts the bytes read from a file.
type counted struct {
	io.ReaderAt
	bytes int
}

func (c *counted) ReadAt(b []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(b, at)
	c.bytes += n
	return n, err
}

// TestNotes: reading many sections of notes stops at their limit.
func TestNotes(t *testing.T) {
	b := elfOf("\x00", make([]byte, 1<<12),
		slices.Repeat([]elf.Section64{{Type: uint32(elf.SHT_NOTE), Size: 1 << 12}}, 4000)...)
	r, left := &counted{ReaderAt: bytes.NewReader(b)}, uint64(maxAll)
	new(object).read(r, &left)
	if notes := r.bytes - 4002*64; notes < maxNotes || notes > maxNotes+1<<10 || left != maxAll-maxNotes {
		t.Errorf("%d bytes were read beside the headers, and %d are left", notes, left)
	}
}

// TestManyFiles: a process is read once, however many files it has mapped.
func TestManyFiles(t *testing.T) {
	p, w, reads := &Process{PID: 7}, &Window{Period: 1e7}, 0
	for i := range uint64(100) {
		p.Mappings = append(p.Mappings, Mapping{Start: i << 12, End: (i + 1) << 12, Path: "/nowhere", Inode: i + 1})
		w.Stacks = append(w.Stacks, Stack{Process: p, User: []uint64{i << 12}, Count: 1})
	}
	f := NewFiles(named{}.Kernel)
	f.read = func(int) (*Process, error) { reads++; return p, nil }
	if _, err := Build(w, f, nil, false); err != nil || reads != 1 {
		t.Errorf("%d readings, %v", reads, err)
	}
}

// changing is a file of zeros whose beginning its owner changes after it was first read.
type changing [2][]byte

func (c *changing) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	if at < int64(len(c[0])) {
		copy(b, c[0][at:])
	}
	if at > 0 { // the section of names
		c[0] = c[1]
	}
	return len(b), nil
}

// TestChangingFile: a file is read according to the headers that were checked, even if it changes afterwards.
func TestChangingFile(t *testing.T) {
	small := elfOf("\x00", nil)
	large := slices.Clone(small)
	encoding.LittleEndian.PutUint64(large[len(large)-32:], 64<<20) // the size of the last section
	r := &counted{ReaderAt: &changing{small, large}}
	if new(object).read(r, new(uint64(maxAll))); r.bytes > 1<<10 {
		t.Errorf("%d bytes were read", r.bytes)
	}
}

// TestHostileFiles: sections that package debug/elf would read or unpack whatever their size are not read.
func TestHostileFiles(t *testing.T) {
	bomb := bytes.NewBufferString("ZLIB\x00\x00\x00\x00\x04\x00\x00\x00") // 64 MiB
	z := zlib.NewWriter(bomb)
	_, err := z.Write(make([]byte, 64<<20))
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	packed := elfOf("\x00.zdebug\x00", append(bomb.Bytes(), make([]byte, maxNotes-bomb.Len())...),
		elf.Section64{Name: 1, Type: uint32(elf.SHT_NOTE), Size: maxNotes})
	named := elfOf(strings.Repeat("a", 1<<16)+"\x00", nil, make([]elf.Section64, 1000)...)
	headers := elfOf("\x00", make([]byte, 64<<20))
	encoding.LittleEndian.PutUint16(headers[54:], 1<<14) // e_phentsize
	encoding.LittleEndian.PutUint16(headers[56:], maxSections)
	swapped := elfOf("\x00", nil)
	swapped[elf.EI_DATA] = byte(elf.ELFDATA2MSB)
	for name, b := range map[string][]byte{"a compressed section": packed, "a long name of many sections": named,
		"large program headers": headers, "another byte order": swapped} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		new(object).read(bytes.NewReader(b), new(uint64(maxAll)))
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 16<<20 {
			t.Errorf("%s: %d bytes were allocated", name, after.TotalAlloc-before.TotalAlloc)
		}
		f := &steady{ReaderAt: bytes.NewReader(b), parts: map[int64][]byte{}}
		if sane := f.sane(); sane != (name == "a compressed section") {
			t.Errorf("%s: sane is %v", name, sane)
		}
	}
}

// FuzzObject: a malicious file can only cause missing or wrong names.
func FuzzObject(f *testing.F) {
	if b, err := os.ReadFile("/bin/true"); err == nil {
		f.Add(b, uint64(0x2000))
	}
	f.Fuzz(func(t *testing.T, b []byte, offset uint64) {
		path := filepath.Join(t.TempDir(), "object")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		o := &object{}
		o.read(file, new(uint64(maxAll)))
		o.name(offset)
	})
}

// TestPprof: `go tool pprof` can read what Build writes.
func TestPprof(t *testing.T) {
	w := &Window{Start: time.Unix(100, 0), Length: time.Second, Period: 10 * time.Millisecond, Stacks: []Stack{
		{Group: "/a", Kernel: []uint64{0x1500, 0x501}, Count: 3}, {Group: "/b", Kernel: []uint64{0x501}, Count: 1},
	}}
	p, err := Build(w, named{}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cpu.pb.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Write(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"-top", path}, []string{"30ms", "bpf:my_connect4", "tcp_sendmsg", "40ms"}},
		{[]string{"-top", "-tagfocus", "group=/b", path}, []string{"10ms", "tcp_sendmsg"}},
	} {
		out, err := exec.Command("go", append([]string{"tool", "pprof"}, c.args...)...).CombinedOutput()
		for _, want := range c.want {
			if err != nil || !strings.Contains(string(out), want) {
				t.Fatalf("%v: %v, without %q:\n%s", c.args, err, want, out)
			}
		}
	}
}

// TestRootOfV2: on v2 the root's counter is that of the CPUs, with interrupts, so kernel threads get the budget's time
// for the root's tasks instead. That time excludes what ran in a group that is gone.
func TestRootOfV2(t *testing.T) {
	cpu := func(path string, seconds float64) ledger.Cgroup {
		return ledger.Cgroup{Path: path, CPUSeconds: &seconds}
	}
	l := &ledger.Ledger{Host: ledger.Host{CgroupMode: "v2", IRQTime: new(true)},
		CPU: ledger.CPU{Root: new(0.2)}, Cgroups: []ledger.Cgroup{cpu("/", 16.2), cpu("/a", 10)}}
	w := &Window{Period: 1e7, Stacks: []Stack{
		{Group: "/", Count: 25}, {Group: "/a", Count: 1000}, {Group: "/gone", Count: 3},
	}}
	for _, want := range [][]int64{{0.2e9, 10e9, 0.03e9}, {0.25e9, 10e9, 0.03e9}} {
		p, err := OfLedger(w, l)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, s := range p.Sample {
			got = append(got, s.Value[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		l.CPU.Root = nil // then a sample counts one period
	}
}

// TestHiddenNames: if the kernel hides its names, a comment in the profile says what is missing.
func TestHiddenNames(t *testing.T) {
	w := &Window{Period: 1e7, Stacks: []Stack{{Group: "/a", Kernel: []uint64{0x100}, Count: 1}}}
	for apart, want := range map[bool]string{true: "interrupts cannot be recognised", false: "have no names"} {
		p, err := ofLedger(w, &ledger.Ledger{Host: ledger.Host{IRQTime: &apart}},
			func([]uint64) ([]string, error) { return nil, ksym.ErrHidden })
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Comments) != 1 || !strings.Contains(p.Comments[0], want) ||
			strings.Contains(p.Comments[0], "interrupts") != apart {
			t.Errorf("apart: %v: comments: %q", apart, p.Comments)
		}
	}
}

// TestEndedInRoot: the CPU time of processes in the root group of v2 that ended in the window is in no counter, only in
// samples.
func TestEndedInRoot(t *testing.T) {
	l := &ledger.Ledger{Host: ledger.Host{CgroupMode: "v2"}, CPU: ledger.CPU{Root: new(0.5)},
		Cgroups: []ledger.Cgroup{{Path: "/", CPUSeconds: new(40.0)}}}
	w := &Window{Period: 1e7, Stacks: []Stack{
		{Process: &Process{PID: -1, Comm: "cc1"}, Group: "/", Count: 3810}, {Group: "/", Count: 40},
	}}
	p, err := OfLedger(w, l)
	if err != nil {
		t.Fatal(err)
	}
	if compiler, kernel := p.Sample[0].Value[1], p.Sample[1].Value[1]; compiler != 38.1e9 || kernel != 0.4e9 {
		t.Errorf("processes that ended have %d ns, want 38.1e9; the kernel's threads have %d, want 0.4e9", compiler, kernel)
	}
	if len(p.Comments) != 1 || !strings.Contains(p.Comments[0], "ended") {
		t.Errorf("comments: %q", p.Comments)
	}
}
