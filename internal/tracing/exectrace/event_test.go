package exectrace

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// FuzzJSONString: strings are encoded as by encoding/json.
func FuzzJSONString(f *testing.F) {
	for _, s := range []string{"", "plain", `quo"te\`, "\x00\x01\b\t\n\f\r\x1f\x7f", "<&>", "é世界🙂", "\xff", "a\xc3",
		"\xed\xa0\x80", "\u2028\u2029\u202a", "\ufffd", "\xf0\x9f\x99"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		if err := e.Encode(string(s)); err != nil {
			t.Fatal(err)
		}
		if got := string(appendJSONString(nil, s)) + "\n"; got != want.String() {
			t.Errorf("%q: got %s, want %s", s, got, want.String())
		}
	})
}

// aligned copies a record to an aligned address.
func aligned(record []byte) []byte {
	words := make([]uint64, len(record)/8+1)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
	return b[:copy(b, record)]
}

func makeRecord(h exectraceEvent, name, args string) []byte {
	h.NameBytes, h.ArgsBytes = uint16(len(name)), uint16(len(args))
	b, err := binary.Append(nil, binary.NativeEndian, h)
	if err != nil {
		panic(err)
	}
	return aligned(append(b, name+args...))
}

var someGroup = &group{text: []byte("/a"), json: []byte(`"/a"`)}

// FuzzRecord: whatever record is in the ring, each output of it is one line, as JSON and as a table.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{})
	f.Add(makeRecord(exectraceEvent{}, "", ""))
	f.Add(makeRecord(exectraceEvent{Flags: 7}, "/bin/sh", "sh\x00-c\x00exit 0\x00\x00cu"))
	f.Add(makeRecord(exectraceEvent{Time: 1 << 63}, "\n", "\n\x00\xff"))
	f.Add(makeRecord(exectraceEvent{}, "/bin/sh", "sh\x00")[:headBytes+5])
	f.Fuzz(func(t *testing.T, record []byte) {
		e, ok := decode(aligned(record))
		if !ok {
			return
		}
		line := e.appendJSON(nil, &clock{}, someGroup)
		var d delivery
		if err := json.Unmarshal(line, &d); err != nil || bytes.IndexByte(line, '\n') != len(line)-1 {
			t.Errorf("%v in %q", err, line)
		}
		args := strings.Split(string(e.args), "\x00")
		if args[len(args)-1] == "" {
			args = args[:len(args)-1]
		}
		if len(args) != len(d.Args) {
			t.Errorf("%q became %q", args, d.Args)
		}
		line = e.appendTable(nil, &clock{table: true}, someGroup)
		if i := bytes.IndexFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }); i != len(line)-1 ||
			line[i] != '\n' {
			t.Errorf("a line of the table has something at %d that is no text: %q", i, line)
		}
	})
}

func TestDecode(t *testing.T) {
	whole := makeRecord(exectraceEvent{}, "/bin/sh", "sh\x00")
	for name, record := range map[string][]byte{
		"empty": {}, "cut in its head": whole[:headBytes-1], "cut in its text": whole[:len(whole)-1],
		"longer than it says": aligned(append(bytes.Clone(whole), 'x')),
	} {
		if _, ok := decode(record); ok {
			t.Errorf("%s: it was taken", name)
		}
	}
	tr := &tracer{options: Options{Output: JSON}}
	tr.deliver(whole[:headBytes-1])
	if tr.lostReader != 1 || tr.delivered != 0 || len(tr.batch) != 0 {
		t.Errorf("%d records that make no sense are counted, not 1", tr.lostReader)
	}
}

// TestUnreadable: events whose arguments or file name could not be read are counted, and delivered with a mark.
func TestUnreadable(t *testing.T) {
	for flag, table := range map[exectraceFlags]string{exectraceFlagsARGS_UNREADABLE: " ?\n",
		exectraceFlagsNAME_UNREADABLE: "\n"} {
		tr := &tracer{options: Options{Output: JSON}, groups: &groups{seen: map[uint64]*group{0: someGroup}}}
		record := makeRecord(exectraceEvent{Flags: uint32(flag), Comm: [16]uint8{'s', 'h'}}, "", "")
		tr.deliver(record)
		var d delivery
		if err := json.Unmarshal(tr.batch, &d); err != nil || !d.Unreadable || d.Truncated || d.Comm != "sh" ||
			tr.unreadable != 1 || tr.events != 1 {
			t.Errorf("%v: %v in %s, counted %d", flag, err, tr.batch, tr.unreadable)
		}
		e, _ := decode(record)
		if line := string(e.appendTable(nil, &clock{table: true}, someGroup)); !strings.HasSuffix(line, table) {
			t.Errorf("%v: %q", flag, line)
		}
	}
}

func TestClock(t *testing.T) {
	at := time.Date(2026, 11, 21, 23, 59, 59, 999_999_999, time.UTC)
	c := clock{offset: at.UnixNano() - 5}
	for nanos, want := range map[uint64]string{5: "2026-11-21T23:59:59.999999999Z", 6: "2026-11-22T00:00:00.000000000Z",
		1_000_000_016: "2026-11-22T00:00:01.000000010Z"} {
		got := string(c.append(nil, nanos))
		parsed, err := time.Parse(time.RFC3339Nano, got)
		if got != want || err != nil || !parsed.Equal(at.Add(time.Duration(nanos-5))) {
			t.Errorf("%d: got %s, want %s (%v)", nanos, got, want, err)
		}
	}
	people := clock{offset: at.UnixNano() - 5, table: true}
	if got, want := string(people.append(nil, 5)), at.Local().Format("15:04:05.000000"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// usual returns a typical record of a storm.
func usual() []byte {
	return makeRecord(exectraceEvent{Time: 1e15, Cgroup: 4711, Pid: 1234, Ppid: 1233,
		Comm: [16]uint8{'t', 'a', 'r', 'g', 'e', 't'}}, "/dev/fd/3", "tare-exec\x000.123456\x00")
}

// TestNoAllocations: delivering an event allocates no memory.
func TestNoAllocations(t *testing.T) {
	tr := &tracer{options: Options{Output: JSON}, out: io.Discard,
		groups: &groups{seen: map[uint64]*group{4711: someGroup}}, batch: make([]byte, 0, batchBytes+4096)}
	tr.clock.set()
	record := usual()
	if n := testing.AllocsPerRun(1000, func() {
		for range 10 {
			tr.deliver(record)
		}
		tr.write()
	}); n != 0 {
		t.Errorf("10 events allocate %g times", n)
	}
}

func BenchmarkDeliver(b *testing.B) {
	tr := &tracer{options: Options{Output: JSON}, out: io.Discard,
		groups: &groups{seen: map[uint64]*group{4711: someGroup}}, batch: make([]byte, 0, batchBytes+4096)}
	tr.clock.set()
	record := usual()
	b.ReportAllocs()
	for b.Loop() {
		if tr.deliver(record); tr.events == 256 {
			tr.write()
		}
	}
}
