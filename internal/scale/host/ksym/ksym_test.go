package ksym

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kernelSymbols reads every function of the running kernel itself, to compare with.
func kernelSymbols(t testing.TB) []Symbol {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []Symbol
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var s Symbol
		var kind string
		fmt.Sscanf(lines.Text(), "%x %s %s", &s.Start, &kind, &s.Name)
		if strings.Contains("tTwW", kind) && s.Start != 0 && !strings.Contains(lines.Text(), "[") {
			out = append(out, s)
		}
		if len(out) == 20000 { // enough, and fast
			break
		}
	}
	if len(out) == 0 {
		t.Skip("needs kernel.kptr_restrict below 2 and CONFIG_KALLSYMS")
	}
	slices.SortFunc(out, func(a, b Symbol) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	return out
}

// sample picks addresses inside functions: at the first byte, and beyond.
func sample(t testing.TB, n int) (addrs []uint64, names map[uint64][]string) {
	all := kernelSymbols(t)
	random := rand.New(rand.NewPCG(1, 2))
	names = map[uint64][]string{}
	for len(addrs) < n {
		i := random.IntN(len(all) - 1)
		for i > 0 && all[i-1].Start == all[i].Start {
			i-- // aliases: several names of one place
		}
		addr := all[i].Start
		for j := i; j < len(all) && all[j].Start == all[i].Start; j++ {
			names[addr] = append(names[addr], all[j].Name)
		}
		addrs = append(addrs, addr)
	}
	return addrs, names
}

func TestResolve(t *testing.T) {
	byKernel := Open()
	defer byKernel.Close()
	if byKernel.reason != nil {
		t.Skipf("needs a kernel that answers (Linux 5.14): %v", byKernel.reason)
	}
	byFile := &Table{kallsyms: "/proc/kallsyms"}
	addrs, names := sample(t, 1000)
	for name, table := range map[string]*Table{"kernel": byKernel, "file": byFile} {
		t.Run(name, func(t *testing.T) {
			got, err := table.Resolve(addrs)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range got {
				if s.Start != addrs[i] || s.Size == 0 || !slices.Contains(names[addrs[i]], s.Name) {
					t.Fatalf("%#x is %+v, want one of %v", addrs[i], s, names[addrs[i]])
				}
			}
			inside := make([]uint64, len(got))
			for i, s := range got {
				inside[i] = s.Start + s.Size/2
			}
			again, err := table.Resolve(inside)
			if err != nil {
				t.Fatal(err)
			}
			for i := range again {
				if again[i].Start != got[i].Start {
					t.Fatalf("the middle of %+v is in %+v", got[i], again[i])
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
		for i, s := range got {
			if s != (Symbol{}) {
				t.Errorf("%#x is %+v, want nothing", addrs[i], s)
			}
		}
	}
}

func TestParseSymbol(t *testing.T) {
	for _, c := range []struct {
		text string
		addr uint64
		want Symbol
	}{
		{"schedule+0x1a/0x120", 0x101a, Symbol{Name: "schedule", Start: 0x1000, Size: 0x120}},
		{"nf_hook+0x0/0x10 [nf_tables]", 0x40, Symbol{Name: "nf_hook", Module: "nf_tables", Start: 0x40, Size: 0x10}},
		{"bpf_prog_6deef7357e7b4530_x+0x3/0x40 [bpf]", 0x43,
			Symbol{Name: "bpf_prog_6deef7357e7b4530_x", Module: "bpf", Start: 0x40, Size: 0x40}},
		{"f+0x1/0x2 [mod 0123abcd]", 9, Symbol{Name: "f", Module: "mod", Start: 8, Size: 2}},
		{"0xffffffff81000000", 0xffffffff81000000, Symbol{}},
		{"", 1, Symbol{}},
		{"a_very_long_name_that_was_cut", 1, Symbol{Name: "a_very_long_name_that_was_cut"}},
		{"cut+0x1", 1, Symbol{Name: "cut"}},
		{"before+0x10/0x20", 1, Symbol{Name: "before"}},
		{"x+y/z", 1, Symbol{Name: "x"}},
	} {
		if got := parseSymbol(c.text, c.addr); got != c.want {
			t.Errorf("%q at %#x: %+v, want %+v", c.text, c.addr, got, c.want)
		}
	}
}

func TestSearch(t *testing.T) {
	const text = "0000000000001000 T first\n0000000000001000 d data\n0000000000001100 t second\n" +
		"not a line\n0000000000003000 t far\t[mod]\n0000000000002000 W third\n0000000000002000"
	for _, c := range []struct {
		addr uint64
		want Symbol
	}{
		{0xfff, Symbol{}},
		{0x1000, Symbol{Name: "first", Start: 0x1000, Size: 0x100}},
		{0x10ff, Symbol{Name: "first", Start: 0x1000, Size: 0x100}},
		{0x1100, Symbol{Name: "second", Start: 0x1100, Size: 0xf00}},
		{0x2fff, Symbol{Name: "third", Start: 0x2000, Size: 0x1000}},
		{0x9999, Symbol{Name: "far", Module: "mod", Start: 0x3000}},
	} {
		got, err := search(strings.NewReader(text), []uint64{c.addr})
		if err != nil || got[0] != c.want {
			t.Errorf("%#x: %+v (%v), want %+v", c.addr, got, err, c.want)
		}
	}
	all, err := search(strings.NewReader(text), []uint64{0x3001, 0x1001, 0x1001, 0})
	if err != nil || all[0].Name != "far" || all[1].Name != "first" || all[2] != all[1] || all[3].Name != "" {
		t.Errorf("together: %+v (%v)", all, err)
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
		if err == nil && (got[0].Start > a || got[1].Start > b) {
			t.Errorf("a symbol above its address: %+v of %#x, %#x", got, a, b)
		}
	})
}

func FuzzParseSymbol(f *testing.F) {
	f.Add("schedule+0x1a/0x120 [x]", uint64(0x101a))
	f.Fuzz(func(t *testing.T, text string, addr uint64) {
		if s := parseSymbol(text, addr); s.Start > addr {
			t.Errorf("%q: %+v starts above %#x", text, s, addr)
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
	addrs, _ := sample(b, 2000)
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

// Loading the program, 2,000 addresses, unloading it.
func BenchmarkByKernel(b *testing.B) { benchmark(b, Open) }

// One pass over all symbols of the kernel.
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
