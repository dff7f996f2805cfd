package bpf

import (
	"encoding/binary"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/mount"
)

// TestHookNames compares the names of hooks with those of cilium/ebpf, which has the words in another order.
func TestHookNames(t *testing.T) {
	others := map[int]string{0: "None", 23: "TraceRawTp", 26: "ModifyReturn"}
	words := regexp.MustCompile(`[a-z]+|[0-9]+`)
	for i, name := range attachTypes {
		theirs := ebpf.AttachType(i).String()
		if strings.HasPrefix(theirs, "AttachType(") || others[i] == theirs {
			continue // theirs does not know it, or calls it something else
		}
		for _, word := range words.FindAllString(name, -1) {
			if !strings.Contains(strings.ToLower(theirs), word) {
				t.Errorf("hook %d is %s, and not %s", i, theirs, name)
			}
		}
	}
}

func TestFdinfoField(t *testing.T) {
	const text = "pos:\t0\nmap_id:\t7\nmemlock:\t4096\nmemlocked:\t1\nfrozen:\t0"
	for _, c := range []struct {
		name string
		want uint64
		ok   bool
	}{{"memlock", 4096, true}, {"map_id", 7, true}, {"frozen", 0, true}, {"prog_id", 0, false}, {"mem", 0, false}} {
		if got, ok := fdinfoField([]byte(text), c.name); got != c.want || ok != c.ok {
			t.Errorf("%s: %d, %v", c.name, got, ok)
		}
	}
}

func FuzzFdinfoField(f *testing.F) {
	f.Add([]byte("memlock:\t4096\n"), "memlock")
	f.Fuzz(func(t *testing.T, text []byte, name string) { _, _ = fdinfoField(text, name) })
}

func TestParseLink(t *testing.T) {
	union := func(words ...uint32) (u [48]byte) {
		for i, w := range words {
			binary.LittleEndian.PutUint32(u[4*i:], w)
		}
		return u
	}
	for _, c := range []struct {
		typ   uint32
		name  string
		words []uint32
		want  string
	}{
		{linkRawTracepoint, "sched_switch", nil, "raw_tracepoint:sched_switch"},
		{linkTracing, "", []uint32{24, 1, 99}, "fentry:btf 1/99"},
		{linkIter, "bpf_map", nil, "iter:bpf_map"},
		{linkNetns, "", []uint32{4026531840, 36}, "netns:4026531840 sk_lookup"},
		{linkPerfEvent, "sched_switch", []uint32{5}, "tracepoint:sched_switch"},
		{linkPerfEvent, "do_exit", []uint32{3}, "kprobe:do_exit"},
		{linkPerfEvent, "", []uint32{6}, "perf_event"},
		{linkPerfEvent, "x", []uint32{0}, "perf_event"},
		{linkPerfEvent, "x", []uint32{77}, "perf_event"},
		{linkKprobeMulti, "", []uint32{0, 0, 12}, "kprobe_multi:12 functions"},
		{linkUprobeMulti, "", []uint32{0, 0, 0, 0, 0, 0, 0, 0, 0, 3}, "uprobe_multi:3 places"},
		{linkNetfilter, "", []uint32{2, 1, 0xffffff9c}, "netfilter:family 2 hook 1 priority -100"},
		{linkStructOps, "", []uint32{4}, "struct_ops:map 4"},
		{linkSockmap, "", []uint32{4, 7}, "sockmap:map 4 msg_verdict"},
		{200, "", nil, "type 200"},
	} {
		if got := parseLink(&linkInfo{Type: c.typ, Union: union(c.words...)}, c.name).Target; got != c.want {
			t.Errorf("link type %d: %q, want %q", c.typ, got, c.want)
		}
	}
}

func FuzzParseLink(f *testing.F) {
	f.Add(uint32(3), []byte{1, 2, 3}, "x")
	f.Fuzz(func(t *testing.T, typ uint32, union []byte, name string) {
		info := linkInfo{Type: typ}
		copy(info.Union[:], union)
		if l := parseLink(&info, name); l.Type == "" {
			t.Error("a link without a type")
		}
	})
}

func TestComplete(t *testing.T) {
	p := Program{Attached: []string{"perf_event (link 7)", "perf_event (link 8)"}}
	for _, target := range []string{"tracepoint:a", "kprobe:b", "kprobe:b", "tracepoint:a", "tracepoint:c"} {
		complete(&p, "perf_event", target)
	}
	want := []string{"tracepoint:a (link 7)", "kprobe:b (link 8)", "tracepoint:c"}
	if !reflect.DeepEqual(p.Attached, want) {
		t.Errorf("%q, want %q", p.Attached, want)
	}
}

func TestCgroupMounts(t *testing.T) {
	const (
		v1    = "30 23 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
		v2    = "31 23 0:27 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\n"
		noise = "1 2 3\n- - -\n25 1 8:1 / / rw - ext4 /dev/vda rw\n31 23 0:27 / /cpu rw - cgroup cgroup rw,cpu\n"
	)
	for text, want := range map[string]cgroupMounts{
		"":              {},
		noise:           {},
		noise + v2:      {v2: "/sys/fs/cgroup/uni fied", memory: "/sys/fs/cgroup/uni fied"},
		v1 + noise + v2: {v2: "/sys/fs/cgroup/uni fied", memory: "/sys/fs/cgroup/memory"},
		v1:              {memory: "/sys/fs/cgroup/memory"},
	} {
		if got := pickCgroupMounts(mount.Parse([]byte(text))); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestRelative(t *testing.T) {
	for _, c := range [][3]string{
		{"/sys/fs/cgroup", "/sys/fs/cgroup", "/"}, {"/sys/fs/cgroup", "/sys/fs/cgroup/a/b", "/a/b"},
		{"/sys/fs/cgroup", "/sys/fs/cgroup2/a", ""}, {"/sys/fs/cgroup", "/elsewhere", ""}, {"/", "/a", "/a"},
	} {
		if got := relative(c[0], c[1]); got != c[2] {
			t.Errorf("%s in %s: %q, want %q", c[1], c[0], got, c[2])
		}
	}
}

// attribute is one attribute of rtnetlink, padded.
func attribute(typ uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func TestNetlinkAttributes(t *testing.T) {
	link := slices.Concat([]byte{0, 0, 1, 0}, []byte{7, 0, 0, 0}, make([]byte, 8),
		attribute(unix.IFLA_IFNAME, 'e', '0', 0),
		attribute(unix.IFLA_XDP, slices.Concat(attribute(2, 4), attribute(4, 0, 0, 0, 0), attribute(5, 9, 0, 0, 0),
			attribute(6, 8, 0, 0, 0))...))
	if index, d, ok := parseDevice(link); index != 7 || d.name != "e0" || !slices.Equal(d.xdp, []uint32{9, 8}) || !ok {
		t.Errorf("interface %d %+v %v", index, d, ok)
	}
	filter := func(kind string) []byte {
		return slices.Concat(make([]byte, 20), attribute(1, append([]byte(kind), 0)...),
			attribute(2, attribute(11, 5, 0, 0, 0)...))
	}
	if id, ok := classifier(filter("bpf")); id != 5 || !ok {
		t.Errorf("program %d, %v", id, ok)
	}
	if id, ok := classifier(filter("u32")); ok {
		t.Errorf("a classifier of another kind has the program %d", id)
	}
	const kind, parms, id = 1, 2, 9
	one := func(bound, program byte) []byte {
		return slices.Concat(attribute(kind, 'b', 'p', 'f', 0), attribute(2, slices.Concat(
			attribute(parms, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, bound, 0, 0, 0),
			attribute(id, program, 0, 0, 0))...))
	}
	table := slices.Concat(make([]byte, 4), attribute(1, slices.Concat(attribute(1, one(1, 5)...), // 6: used by no filter
		attribute(2, one(0, 6)...), attribute(3, one(2, 8)...))...))
	if got := parseActions(table); !slices.Equal(got, []action{{7, 5}, {7, 8}}) {
		t.Errorf("actions %v", got)
	}
	for handle, want := range map[uint32]string{0x10000: "parent 1:", 0x3000010: "parent 300:10",
		0xabcd002a: "parent abcd:2a"} {
		if got := parentName(handle); got != want {
			t.Errorf("%#x: %s, want %s", handle, got, want)
		}
	}
	for n := range link { // a truncated message is no error, and gives no programs
		if _, d, _ := parseDevice(link[:n]); len(d.xdp) > 0 {
			t.Errorf("of %d bytes: %+v", n, d)
		}
	}
}

func TestFirstOf(t *testing.T) {
	if err := firstOf([]error{nil, nil}); err != nil {
		t.Error(err)
	}
	err := firstOf([]error{nil, unix.EPERM, unix.EIO, unix.EIO})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "2 more") {
		t.Error(err)
	}
	for err, want := range map[error]bool{unix.EINVAL: true, unix.ENODEV: true, unix.EPERM: false,
		unix.ENAMETOOLONG: false} {
		if noHook(err) != want {
			t.Errorf("%v", err)
		}
	}
}

// TestDumpOfNothing: if the kernel lacks a kind of object, its list is empty.
func TestDumpOfNothing(t *testing.T) {
	const noSuch = 0xfe // above RTM_MAX; the two lowest bits of 2 ask for a list
	if list, err := dump(noSuch, noSuch, &nl.TcMsg{}); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}

func FuzzNetlink(f *testing.F) {
	f.Add(append(make([]byte, 20), attribute(3, 'l', 'o', 0)...))
	f.Add(append(make([]byte, 20), attribute(2, attribute(11, 5)...)...))
	f.Fuzz(func(_ *testing.T, b []byte) { // they must return without a panic
		parseDevice(b)
		classifier(b)
		kindOf(b)
		parseActions(b)
	})
}

func FuzzRecords(f *testing.F) {
	f.Add(make([]byte, 56))
	f.Fuzz(func(t *testing.T, b []byte) {
		held, err := records[iteratorsHeld](b)
		if err == nil && len(held)*28 != len(b) {
			t.Errorf("%d records of %d bytes", len(held), len(b))
		}
	})
}

func TestTypeNames(t *testing.T) {
	for _, c := range []struct {
		names []string
		n     uint32
		want  string
	}{
		{programTypes, 32, "netfilter"}, {mapTypes, 33, "arena"}, {mapTypes, uint32(ebpf.RingBuf), "ringbuf"},
		{linkTypes, linkSockmap, "sockmap"},
		{attachTypes, 10, "connect4"}, {attachTypes, 57, "uprobe_session"}, {attachTypes, 46, "ingress"},
		{mapTypes, 4000000000, "type 4000000000"},
	} {
		if got := typeName(c.names, c.n); got != c.want {
			t.Errorf("%d: %q, want %q", c.n, got, c.want)
		}
	}
}

// TestCostOfRun: if runs with statistics were not slower, their cost is unknown, not 0.
func TestCostOfRun(t *testing.T) {
	const without = 40 * time.Microsecond
	for with, want := range map[time.Duration]time.Duration{ // 0: unknown
		without + costRuns*20: 20, without: 0, without - 1: 0, without + costRuns - 1: 0,
	} {
		if got, err := costOfRun(without, with); got != want || (err == nil) != (want > 0) {
			t.Errorf("%v with and %v without: %v, %v; want %v", with, without, got, err, want)
		}
	}
}
