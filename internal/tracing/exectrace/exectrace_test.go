package exectrace

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/scale/host/cgroup"
	"tare/test/vm/guest"
)

func TestOptions(t *testing.T) {
	for _, dir := range []string{"/proc", "/no/such/group"} {
		if err := Run(t.Context(), Options{CgroupDir: dir}, io.Discard, io.Discard); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s: got %v", dir, err)
		}
	}
	for _, wrong := range []param.Values{
		{"output": "jsn"}, {"args": strconv.Itoa(maxArgs + 1)}, {"args": "-1"}, {"latency": "1us"}, {"latency": "1m"},
		{"for": "-1s"}, {"ring": "100000"}, {"ring": "4096"}, {"ring": strconv.Itoa(maxRing << 1)},
	} {
		err := wrong.Check(Process)
		if _, ring := wrong["ring"]; ring {
			_, err = OptionsOf(wrong)
		}
		if err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}

// TestFields: every field of an event is correct.
func TestFields(t *testing.T) {
	dir := newGroup(t, "")
	id, err := cgroup.ID(dir)
	if err != nil {
		t.Fatal(err)
	}
	program := tiny(t, "a program's name")
	interpreter, script := tiny(t, "interpreter"), filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!"+interpreter+" -x\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", DefaultArgs)
	h := trace(t, Options{CgroupDir: dir})
	var made, truncated uint64
	for _, c := range []struct {
		name      string
		program   string
		uid       uint32
		argv      []string
		args      []string // nil: argv
		comm      string
		truncated bool
	}{
		{name: "plain", argv: []string{"name", "one", "two"}},
		{name: "another user", argv: []string{"name"}, uid: 65534},
		{name: "words that need care", argv: []string{"a b", `quo"te'd`, `back\slash`, "line\nbreak\ttab\x01\x7f", "",
			"é世界🙂"}},
		{name: "no UTF-8", argv: []string{"\xff\xfe", "a\xc3", "\xed\xa0\x80", "line\u2028separator"}},
		{name: "empty words", argv: []string{"", "", ""}},
		// Since Linux 5.18, the kernel passes one empty argument in this case.
		{name: "no arguments at all", argv: []string{}, args: []string{""}},
		{name: "as long as they may be", argv: []string{long[1:]}},
		{name: "longer by a byte", argv: []string{long}, truncated: true},
		{name: "many that are too long", argv: []string{"name", long, "more"}, args: []string{"name", long[:len(long)-5]},
			truncated: true},
		{name: "script", program: script, argv: []string{"name", "one"}, args: []string{interpreter, "-x", script, "one"},
			comm: "script"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.program == "" {
				c.program = program
			}
			if c.args == nil {
				c.args = c.argv
			}
			if c.comm == "" {
				c.comm = "a program's nam"
			}
			g := newGenerator(t, c.program, dir)
			g.uid = c.uid
			before := time.Now()
			pid, err := g.exec(c.argv...)
			if err != nil {
				t.Fatal(err)
			}
			after := time.Now()
			made++
			if c.truncated {
				truncated++
			}
			// statistics are printed if an event was lost
			until(func() bool { return len(h.out.lines()) >= int(made) || strings.Contains(h.log.String(), "statistics") })
			all := deliveries(t, h.out.lines())
			if len(all) != int(made) {
				t.Fatalf("%d events of %d: %s", len(all), made, h.out.String())
			}
			e := all[made-1]
			want := delivery{
				Time: e.Time, PID: pid, PPID: os.Getpid(), UID: c.uid, Cgroup: pathOf(t, dir), CgroupID: id,
				Comm: c.comm, Filename: c.program, Args: throughJSON(t, c.args), Truncated: c.truncated,
			}
			got, _ := json.Marshal(e)
			wanted, _ := json.Marshal(want)
			if string(got) != string(wanted) {
				t.Errorf("got  %s\nwant %s", got, wanted)
			}
			const clocks = time.Millisecond // clocks are read one after the other
			if e.Time.Before(before.Add(-clocks)) || e.Time.After(after.Add(clocks)) {
				t.Errorf("at %s, not between %s and %s", e.Time, before, after)
			}
		})
	}
	if s := h.end(t); s.Seen != made || s.Delivered != made || s.Truncated != truncated || s.Unreadable != 0 {
		t.Errorf("%d execs, %d of them truncated: %+v", made, truncated, s)
	}
}

// throughJSON returns strings after encoding to JSON and decoding, which replaces invalid UTF-8.
func throughJSON(t *testing.T, words []string) (out []string) {
	t.Helper()
	b, err := json.Marshal(words)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func pathOf(t *testing.T, dir string) string {
	t.Helper()
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, _ := l.V2()
	return h.Identity(strings.TrimPrefix(dir, h.Mount))
}

// TestNoArgs: with NoArgs, events have no arguments, and are marked as truncated.
func TestNoArgs(t *testing.T) {
	dir := newGroup(t, "")
	h := trace(t, Options{CgroupDir: dir, Args: NoArgs})
	if _, err := newGenerator(t, tiny(t, "tiny"), dir).exec("one"); err != nil {
		t.Fatal(err)
	}
	h.end(t)
	if e := deliveries(t, h.out.lines()); len(e) != 1 || len(e[0].Args) != 0 || !e[0].Truncated {
		t.Errorf("got %+v", e)
	}
}

// TestFilter: execs in the traced group and below it are traced, and others are not. Without a group, those of the
// whole machine are.
func TestFilter(t *testing.T) {
	dir := newGroup(t, "")
	below, beside := newGroup(t, dir), newGroup(t, "")
	program := tiny(t, "tiny")
	some := trace(t, Options{CgroupDir: dir})
	all := trace(t, Options{})
	for _, d := range []string{dir, below, beside, ""} {
		if _, err := newGenerator(t, program, d).exec(d); err != nil {
			t.Fatal(err)
		}
	}
	s := some.end(t)
	all.end(t)
	var got []string
	for _, e := range deliveries(t, some.out.lines()) {
		got = append(got, e.Args[0])
	}
	if !slices.Equal(got, []string{dir, below}) || s.Seen != 2 {
		t.Errorf("traced in %q, seen %d", got, s.Seen)
	}
	got = nil
	for _, e := range deliveries(t, all.out.lines()) {
		if e.Filename == program {
			got = append(got, e.Args[0])
		}
	}
	if !slices.Equal(got, []string{dir, below, beside, ""}) {
		t.Errorf("of the machine: %q", got)
	}
}

// TestNode: with Node, execs in the tracer's PID namespace and below it are traced, and others are not. In the initial
// namespace, those of the whole machine are.
func TestNode(t *testing.T) {
	dir := newGroup(t, "")
	g := newGenerator(t, tiny(t, "tiny"), dir)
	elsewhere, shell := *g, *g
	elsewhere.group = nil
	shell.program, shell.unshare = "/bin/sh", unix.CLONE_NEWPID // the children of the shell are in a new PID namespace
	all := trace(t, Options{Node: true})
	node := traceApart(t, Options{CgroupDir: dir, Node: true}, nil, ownNode)
	node.ready()
	exec := func(g generator, argv ...string) {
		if _, err := g.exec(argv...); err != nil {
			t.Error(argv, err)
		}
	}
	exec(*g, "tiny", "outside")
	exec(shell, "sh", "-c", g.program+" below the outside; :")
	namespace, err := os.Open("/proc/" + strconv.Itoa(node.cmd.Process.Pid) + "/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	var inside sync.WaitGroup
	inside.Go(func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWPID); err != nil {
			t.Error(err)
			return
		}
		exec(*g, "tiny", "inside")
		exec(shell, "sh", "-c", g.program+" below; :")
		exec(elsewhere, "tiny", "in no group")
	})
	inside.Wait()
	if err := node.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := node.wait(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, node.log.String())
	}
	all.end(t)
	made := func(lines []string) (names []string) {
		for _, e := range deliveries(t, lines) {
			if e.Filename == g.program {
				names = append(names, strings.Join(e.Args[1:], " "))
			}
		}
		return names
	}
	got, s := made(node.out.lines()), lastStatistics(t, node.log.String())
	if !slices.Equal(got, []string{"inside", "below"}) || s.Seen != 3 { // the third is the shell
		t.Errorf("of the node: %q, seen %d", got, s.Seen)
	}
	got = made(all.out.lines())
	if !slices.Equal(got, []string{"outside", "below the outside", "inside", "below", "in no group"}) {
		t.Errorf("of the machine: %q", got)
	}
}

// TestIdentities: each exec is delivered exactly once.
func TestIdentities(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 30 // an exec takes 30 ms on an emulated machine
	}
	dir := newGroup(t, "")
	h := trace(t, Options{CgroupDir: dir})
	newGenerator(t, tiny(t, "tiny"), dir).storm(t, 0, n)
	if s := h.end(t); s.Seen != uint64(n) || s.Delivered != uint64(n) {
		t.Errorf("%d execs: %+v", n, s)
	}
	once(t, h.out.lines(), n, n)
}

// once checks that the wanted number of different execs from 0 to n-1 was delivered, and none of them twice.
func once(t *testing.T, lines []string, n, wanted int) {
	t.Helper()
	seen := map[int]bool{}
	for _, e := range deliveries(t, lines) {
		i, err := strconv.Atoi(e.Args[1])
		if err != nil || i < 0 || i >= n || seen[i] {
			t.Fatalf("exec %q is none of those made, or was delivered before", e.Args)
		}
		seen[i] = true
	}
	if len(seen) != wanted {
		t.Errorf("%d of %d execs were delivered, not %d", len(seen), n, wanted)
	}
}

// TestStarved: a tracer with a small ring that is stopped for a while loses execs, and reports exactly how many.
func TestStarved(t *testing.T) {
	n, edge, padding := 900, 50, 400 // padding is in bytes; all execs together need six times the size of the ring
	if testing.Short() {
		n, edge, padding = 120, 10, 1600 // twice the size; an exec takes 30 ms on an emulated machine
	}
	dir := newGroup(t, "")
	p := traceApart(t, Options{CgroupDir: dir, Ring: minRing, Args: 2 * padding}, nil, "")
	p.ready()
	g, more := newGenerator(t, tiny(t, "tiny"), dir), strings.Repeat("x", padding)
	g.storm(t, 0, edge, more)
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.storm(t, edge, n-2*edge, more)
	if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	until(func() bool { return strings.Contains(p.log.String(), "statistics") }) // the tracer reports the loss by itself
	g.storm(t, n-edge, edge, more)
	if err := p.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, p.log.String())
	}
	s := lastStatistics(t, p.log.String())
	if s.Seen != uint64(n) || s.LostReserve == 0 || s.Delivered+s.LostReserve != uint64(n) {
		t.Errorf("of %d execs: %+v", n, s)
	}
	once(t, p.out.lines(), n, int(s.Delivered))
	for _, e := range deliveries(t, p.out.lines()) { // including records that wrap around in the ring
		if len(e.Args) != 3 || e.Args[2] != more || e.Filename != g.program || e.PPID != os.Getpid() {
			t.Errorf("not as it was made: %+v", e)
		}
	}
}

// TestRing: records are complete wherever in the ring they begin.
func TestRing(t *testing.T) {
	guest.KernelFree(t)
	const size = 4096
	var consumer, producer uint64
	for at := uint64(0); at < 3*size; at += 8 {
		for _, length := range []uint64{0, 1, 8, 100} {
			data := aligned(make([]byte, size))
			record := []byte(strings.Repeat("abcdefg", 20))[:length]
			binary.NativeEndian.PutUint32(data[at%size:], uint32(length))
			for i, c := range record {
				data[(at+recordHead+uint64(i))%size] = c
			}
			r := &ring{consumer: &consumer, producer: &producer, data: data, joined: make([]byte, maxRecord),
				mask: size - 1, at: at}
			producer = at + (recordHead+length+7)&^7
			got, ok := r.next(r.produced())
			if !ok || string(got) != string(record) || r.at != producer || r.waiting() != 0 {
				t.Fatalf("at %d: got %q, %t, not %q", at, got, ok, record)
			}
			if r.release(); consumer != producer {
				t.Fatalf("at %d: %d bytes were released, not %d", at, consumer, producer)
			}
			r.at = at
			for flag, want := range map[uint32]uint64{recordDiscard: producer, recordBusy: at} {
				r.at = at
				binary.NativeEndian.PutUint32(data[at%size:], uint32(length)|flag)
				if got, ok := r.next(producer); ok || r.at != want {
					t.Fatalf("at %d: took %q, which is not to be read, and is at %d", at, got, r.at)
				}
			}
		}
	}
}

// TestOutputFails: if the output cannot be written, because its reader has gone or the disk is full, the tracer ends,
// says why, and counts the events that were not delivered.
func TestOutputFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	dir := newGroup(t, "")
	g := newGenerator(t, tiny(t, "tiny"), dir)
	for _, output := range Outputs {
		if testing.Short() && output != JSON {
			continue // each output starts two tracers, and the program in the kernel is the same for all
		}
		t.Run(output+" to a full disk", func(t *testing.T) {
			p := traceApart(t, Options{CgroupDir: dir, Output: output}, full, "")
			if output != Table { // with Table, already the heading cannot be written
				p.ready()
				g.storm(t, 0, 3)
			}
			checkFailed(t, p, unix.ENOSPC, 0)
		})
		t.Run(output+" to nobody", func(t *testing.T) {
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			p := traceApart(t, Options{CgroupDir: dir, Output: output}, write, "")
			write.Close()
			p.ready()
			g.storm(t, 0, 3)
			// Wait for three lines, not counting the heading of a table. With Count, one line may cover all events.
			var got buffer
			until(func() bool {
				var b [1024]byte
				n, err := read.Read(b[:])
				got.Write(b[:n])
				text := got.String()
				return err != nil || strings.Count(text, "\n") >= 4 || output == JSON && strings.Count(text, "\n") == 3 ||
					strings.Contains(text, `"delivered":3`)
			})
			read.Close()
			g.storm(t, 3, 2)
			checkFailed(t, p, unix.EPIPE, 3)
		})
	}
}

func checkFailed(t *testing.T, p *apart, want error, delivered uint64) {
	t.Helper()
	code := p.wait()
	s := lastStatistics(t, p.log.String())
	if code != int(fault.Machine) || !strings.Contains(p.log.String(), want.Error()) ||
		!strings.Contains(p.log.String(), "make room") {
		t.Errorf("exit code %d\n%s", code, p.log.String())
	}
	if s.Delivered != delivered || s.LostOutput != s.Seen-delivered || s.LostReserve != 0 {
		t.Errorf("%+v", s)
	}
}

// TestCutWrite: if a write fails partway, the complete lines that it wrote count as delivered, and the cut one does
// not.
func TestCutWrite(t *testing.T) {
	guest.KernelFree(t)
	tr := &tracer{out: cutWriter(15), batch: []byte("{1234567}\n{1234567}\n{1234567}\n"), events: 3}
	tr.write()
	if tr.delivered != 1 || tr.lostOutput != 2 || !errors.Is(tr.failed, unix.ENOSPC) || len(tr.batch) != 0 {
		t.Errorf("delivered %d, lost %d, %v", tr.delivered, tr.lostOutput, tr.failed)
	}
}

// cutWriter accepts that many bytes of each write, and then fails.
type cutWriter int

func (c cutWriter) Write([]byte) (int, error) { return int(c), unix.ENOSPC }

// TestWakes: an idle reader wakes at the first event. After a batch it sleeps for the latency, but wakes earlier if the
// ring is half full. The latency here is an hour, so that it cannot be what wakes the reader.
func TestWakes(t *testing.T) {
	dir := newGroup(t, "")
	o := Options{CgroupDir: dir, Output: JSON, Ring: minRing, Args: 1024, Latency: time.Hour}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	k, err := load(o, l)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	var out, log buffer
	tr := &tracer{options: o, kernel: k, groups: newGroups(l), out: &out, log: &log}
	defer tr.groups.close()
	g := newGenerator(t, tiny(t, "tiny"), dir)
	tell := make(chan os.Signal)
	tr.options.Tell = tell
	ended := make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- tr.run(ctx) }()
	until(func() bool { return strings.Contains(log.String(), "ready") })
	g.storm(t, 0, 1)
	until(func() bool { return len(out.lines()) == 1 })
	const padding, batch = 800, 60 // the batch fills more than half of the ring, but not all of it
	g.storm(t, 1, batch, strings.Repeat("x", padding))
	until(func() bool { return len(out.lines()) >= minRing/2/(padding+200) })
	tell <- unix.SIGUSR1 // the signal also wakes the reader
	until(func() bool { return strings.Contains(log.String(), "statistics") })
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	once(t, out.lines(), 1+batch, 1+batch)
}

// TestStorms: no event is lost in storms on all CPUs.
func TestStorms(t *testing.T) {
	storms, n := 30, 400
	if testing.Short() {
		storms, n = 2, 30
	}
	dir := newGroup(t, "")
	h := trace(t, Options{CgroupDir: dir})
	g := newGenerator(t, tiny(t, "tiny"), dir)
	for i := range storms {
		g.storm(t, i*n, n)
		until(func() bool {
			return len(h.out.lines()) >= (i+1)*n || strings.Contains(h.log.String(), "statistics") // of a loss
		})
	}
	if s := h.end(t); s.Seen != uint64(storms*n) || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
	once(t, h.out.lines(), storms*n, storms*n)
}

// TestCount: with Count, totals are printed as lines, even while there are no events, and the last line is correct.
func TestCount(t *testing.T) {
	const n = 25
	dir := newGroup(t, "")
	h := trace(t, Options{CgroupDir: dir, Output: Count})
	newGenerator(t, tiny(t, "tiny"), dir).storm(t, 0, n)
	until(func() bool { return strings.Contains(h.out.String(), `"delivered":25,`) })
	before := len(h.out.lines())
	until(func() bool { return len(h.out.lines()) > before })
	h.end(t)
	lines := h.out.lines()
	var last uint64
	for _, text := range lines {
		var s Statistics
		if err := json.Unmarshal([]byte(text), &s); err != nil || s.Delivered < last || s.Event != "" {
			t.Errorf("%v in %q", err, text)
		}
		last = s.Delivered
	}
	if last != n {
		t.Errorf("%d execs, in the end %d", n, last)
	}
}

// TestTable: the table has one line for each event, without terminal control characters.
func TestTable(t *testing.T) {
	dir := newGroup(t, "")
	h := trace(t, Options{CgroupDir: dir, Output: Table})
	program := tiny(t, "tiny")
	if _, err := newGenerator(t, program, dir).exec("sh", "-c", "echo \x1b[31m\n", "世界", ""); err != nil {
		t.Fatal(err)
	}
	h.end(t)
	want := regexp.MustCompile(`^` + regexp.QuoteMeta(tableHead) + `\d\d:\d\d:\d\d\.\d{6} 0 +\d+ +\d+ +tiny +` +
		regexp.QuoteMeta(pathOf(t, dir)) + ` +` +
		regexp.QuoteMeta(program+` -c "echo \x1b[31m\n" 世界 ""`) + "\n$")
	if !want.MatchString(h.out.String()) {
		t.Errorf("got\n%s", h.out.String())
	}
}

// TestFor: the tracer ends after the time Options.For.
func TestFor(t *testing.T) {
	dir := newGroup(t, "")
	var out, log buffer
	if err := Run(t.Context(), Options{CgroupDir: dir, For: 100 * time.Millisecond}, &out, &log); err != nil {
		t.Fatal(err)
	}
	if s := lastStatistics(t, log.String()); s.Seen != 0 {
		t.Errorf("%+v", s)
	}
}

// TestKilled: a tracer that is killed leaves nothing in the kernel.
func TestKilled(t *testing.T) {
	p := traceApart(t, Options{}, nil, "")
	p.ready()
	programs, maps, links := held(t, p.cmd.Process.Pid)
	if len(programs) != 1 || len(maps) < 5 || len(links) != 1 {
		t.Fatalf("it holds programs %v, maps %v, links %v", programs, maps, links)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait()
	for _, id := range programs {
		until(func() bool { return gone(ebpf.NewProgramFromID(ebpf.ProgramID(id))) })
	}
	for _, id := range maps {
		until(func() bool { return gone(ebpf.NewMapFromID(ebpf.MapID(id))) })
	}
	for _, id := range links {
		until(func() bool { return gone(link.NewFromID(link.ID(id))) })
	}
}

func gone[T io.Closer](object T, err error) bool {
	if err == nil {
		object.Close()
	}
	return errors.Is(err, os.ErrNotExist)
}

// held returns the ids of the objects that a process has open.
func held(t *testing.T, pid int) (programs, maps, links []uint64) {
	t.Helper()
	all := map[string]*[]uint64{"prog_id:": nil, "map_id:": &maps, "link_id:": &links}
	files, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the file was closed in the meantime
		}
		fields := strings.Fields(string(text))
		isLink := slices.Contains(fields, "link_id:")
		for i, word := range fields[:max(len(fields)-1, 0)] {
			id, _ := strconv.ParseUint(fields[i+1], 10, 32)
			switch to := all[word]; {
			case to != nil:
				*to = append(*to, id)
			case word == "prog_id:" && !isLink:
				programs = append(programs, id)
			}
		}
	}
	return programs, maps, links
}

// TestMissing: if the machine lacks something that the tracer needs, the error has a hint and a code.
func TestMissing(t *testing.T) {
	for before, want := range map[string]string{dropRights: "run as root", hideBTF: "CONFIG_DEBUG_INFO_BTF"} {
		t.Run(before, func(t *testing.T) {
			p := traceApart(t, Options{}, nil, before)
			if code := p.wait(); code != int(fault.Machine) || !strings.Contains(p.log.String(), want) ||
				strings.Contains(p.log.String(), "ready") {
				t.Errorf("exit code %d\n%s", code, p.log.String())
			}
		})
	}
}

// TestLean: a lean process uses little memory, and still works.
func TestLean(t *testing.T) {
	dir := newGroup(t, "")
	p := traceApart(t, Options{CgroupDir: dir, Lean: true}, nil, "")
	p.ready()
	newGenerator(t, tiny(t, "tiny"), dir).storm(t, 0, 100)
	until(func() bool { return len(p.out.lines()) == 100 })
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(regexp.MustCompile(`(VmHWM|VmRSS|Rss\w+):.*`).FindAllString(string(status), -1))
	if err := p.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.log.String())
	}
}

// TestGroups: a group is named by its path while it exists, and by its id otherwise.
func TestGroups(t *testing.T) {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	g := newGroups(l)
	defer g.close()
	dir := newGroup(t, "")
	id, err := cgroup.ID(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(g.of(id).text); got != pathOf(t, dir) {
		t.Errorf("got %s", got)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got := string(g.of(id).text); got != pathOf(t, dir) {
		t.Errorf("one that is known is still called by its path, not %s", got)
	}
	clear(g.seen)
	if got := string(g.of(id).json); got != `"`+strconv.FormatUint(id, 10)+`"` {
		t.Errorf("one that has gone is called by its id, not %s", got)
	}
	for i := range uint64(3 * maxGroups) {
		g.of(1<<40 + i)
	}
	if len(g.seen) > maxGroups {
		t.Errorf("it remembers %d groups", len(g.seen))
	}
}
