package ksym

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"tare/test/vm/guest"
)

type symbol struct {
	start uint64
	name  string
}

// kernelSymbols reads functions of the running kernel from /proc/kallsyms, for comparison.
func kernelSymbols(t testing.TB) []symbol {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []symbol
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var s symbol
		var kind string
		fmt.Sscanf(lines.Text(), "%x %s %s", &s.start, &kind, &s.name)
		if strings.Contains("tTwW", kind) && s.start != 0 && !strings.Contains(lines.Text(), "[") {
			out = append(out, s)
		}
		if len(out) == 20000 { // enough, and fast
			break
		}
	}
	if len(out) == 0 {
		t.Skip("needs kernel.kptr_restrict below 2 and CONFIG_KALLSYMS")
	}
	slices.SortFunc(out, func(a, b symbol) int { return cmp.Compare(a.start, b.start) })
	return out
}

// sample picks n functions. It returns the addresses of their first bytes, addresses in their middle, and the names
// that each may have.
func sample(t testing.TB, n int) (addrs, inside []uint64, names [][]string) {
	all := kernelSymbols(t)
	random := rand.New(rand.NewPCG(1, 2))
	for len(addrs) < n {
		i := random.IntN(len(all) - 1)
		for i > 0 && all[i-1].start == all[i].start {
			i-- // aliases: several names of one place
		}
		var aliases []string
		j := i
		for ; j < len(all) && all[j].start == all[i].start; j++ {
			aliases = append(aliases, all[j].name)
		}
		if j == len(all) {
			continue
		}
		addrs, inside = append(addrs, all[i].start), append(inside, all[i].start+(all[j].start-all[i].start)/2)
		names = append(names, aliases)
	}
	return addrs, inside, names
}

func TestResolve(t *testing.T) {
	guest.Slow(t)
	byKernel := Open()
	defer byKernel.Close()
	if byKernel.reason != nil {
		t.Skipf("needs a kernel that answers (Linux 5.14): %v", byKernel.reason)
	}
	byFile := &Table{kallsyms: "/proc/kallsyms"}
	starts, inside, names := sample(t, 1000)
	for name, table := range map[string]*Table{"kernel": byKernel, "file": byFile} {
		t.Run(name, func(t *testing.T) {
			for _, addrs := range [][]uint64{starts, inside} {
				got, err := table.Resolve(addrs)
				if err != nil {
					t.Fatal(err)
				}
				for i, name := range got {
					if !slices.Contains(names[i], name) {
						t.Fatalf("%#x is %s, want one of %v", addrs[i], name, names[i])
					}
				}
			}
		})
	}
}

func TestResolveUnknown(t *testing.T) {
	table := Open()
	defer table.Close()
	for _, addrs := range [][]uint64{nil, {}, {1}, {0}, {0x1234, 0}} {
		got, err := table.Resolve(addrs)
		if err != nil || len(got) != len(addrs) {
			t.Fatalf("%v: %v, %v", addrs, got, err)
		}
		for i, name := range got {
			if name != "" {
				t.Errorf("%#x is %s, want nothing", addrs[i], name)
			}
		}
	}
}

func TestNameIn(t *testing.T) {
	for text, want := range map[string]string{
		"schedule+0x1a/0x120":                        "schedule",
		"nf_hook+0x0/0x10 [nf_tables]":               "nf_hook",
		"bpf_prog_6deef7357e7b4530_x+0x3/0x40 [bpf]": "bpf_prog_6deef7357e7b4530_x",
		"f+0x1/0x2 [mod 0123abcd]":                   "f",
		"0xffffffff81000000":                         "",
		"":                                           "",
		"a_very_long_name_that_was_cut":              "a_very_long_name_that_was_cut",
		"cut+0x1":                                    "cut",
		"x+y/z":                                      "x",
	} {
		if got := nameIn(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestSearch(t *testing.T) {
	const text = "0000000000001000 T first\n0000000000001000 d data\n0000000000001100 t second\n" +
		"not a line\n0000000000003000 t far\t[mod]\n0000000000002000 W third\n0000000000002000"
	for addr, want := range map[uint64]string{0xfff: "", 0x1000: "first", 0x10ff: "first", 0x1100: "second",
		0x2fff: "third", 0x9999: "far"} {
		got, err := search(strings.NewReader(text), []uint64{addr})
		if err != nil || got[0] != want {
			t.Errorf("%#x: %q (%v), want %q", addr, got, err, want)
		}
	}
	all, err := search(strings.NewReader(text), []uint64{0x3001, 0x1001, 0x1001, 0})
	if err != nil || !slices.Equal(all, []string{"far", "first", "first", ""}) {
		t.Errorf("together: %q (%v)", all, err)
	}
	if _, err := search(strings.NewReader("0000000000000000 T hidden\n"), []uint64{1}); !errors.Is(err, ErrHidden) {
		t.Errorf("hidden addresses: %v", err)
	}
}

func FuzzSearch(f *testing.F) {
	f.Add("ffffffff81000000 T _text\nffffffff81000100 t x\t[m]\n", uint64(0xffffffff81000001), uint64(0))
	f.Add("", uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, text string, a, b uint64) {
		got, err := search(strings.NewReader(text), []uint64{a, b})
		if err == nil && (!strings.Contains(text, got[0]) || !strings.Contains(text, got[1])) {
			t.Errorf("%q is not in %q", got, text)
		}
	})
}

func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func benchmark(b *testing.B, open func() *Table) {
	addrs, _, _ := sample(b, 2000)
	b.ResetTimer()
	start := cpuTime()
	for range b.N {
		table := open()
		if _, err := table.Resolve(addrs); err != nil {
			b.Fatal(err)
		}
		table.Close()
	}
	b.ReportMetric(float64((cpuTime()-start).Microseconds())/float64(b.N), "cpu-us/op")
}

// BenchmarkByKernel loads the program, looks up 2,000 addresses and unloads the program.
func BenchmarkByKernel(b *testing.B) { benchmark(b, Open) }

// BenchmarkByFile looks up the same addresses in one pass over all symbols of the kernel.
func BenchmarkByFile(b *testing.B) {
	benchmark(b, func() *Table { return &Table{kallsyms: "/proc/kallsyms"} })
}

func BenchmarkOpen(b *testing.B) {
	start := cpuTime()
	for range b.N {
		Open().Close()
	}
	b.ReportMetric(float64((cpuTime()-start).Microseconds())/float64(b.N), "cpu-us/op")
}

func TestFeatures(t *testing.T) {
	for _, p := range Features() {
		if s := p.Status(); s.Detail == "" || !s.Available && s.Hint == "" {
			t.Errorf("%+v", s)
		}
	}
}
