// Package ksym gives kernel addresses their names. Samples of the machine hold a few thousand different addresses, each
// of which is asked for once.
//
// Measured on a kernel with 122,000 symbols: 2,000 addresses take 2.6 ms of CPU by a BPF program that asks the kernel
// (Linux 5.14), loading and unloading it included, and 47 ms by reading /proc/kallsyms, which is the way on older
// kernels.
package ksym

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" ksym bpf/ksym.bpf.c

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/feature"
)

// ErrHidden means that the kernel shows no addresses: kernel.kptr_restrict, or too few privileges.
var ErrHidden = errors.New("the kernel hides the addresses of its symbols")

// Table answers. It is for one goroutine at a time.
type Table struct {
	objects  ksymObjects
	byKernel bool
	reason   error // why the kernel is not asked
	kallsyms string
	text     [batch][textSize]byte
}

// batch is how many addresses the program takes at once; textSize how many bytes it has for each.
const (
	batch    = len(ksymQuestions{}.Addresses)
	textSize = len(ksymAnswers{}.Text[0])
)

// Open loads the program, or settles on /proc/kallsyms where it does not load. Close it.
func Open() *Table {
	t := &Table{kallsyms: "/proc/kallsyms"}
	if err := loadKsymObjects(&t.objects, nil); err != nil {
		t.reason = fmt.Errorf("loading the symbol program: %w", err)
		return t
	}
	t.byKernel = true
	return t
}

// Close unloads the program.
func (t *Table) Close() error {
	if !t.byKernel {
		return nil
	}
	t.byKernel = false
	return t.objects.Close()
}

// Resolve gives the names of the functions around addresses, in their order; empty where the kernel knows none.
// Addresses are taken as they are: for a return address, pass the one before it.
func (t *Table) Resolve(addrs []uint64) ([]string, error) {
	if !t.byKernel {
		f, err := os.Open(t.kallsyms)
		if err != nil {
			return nil, fmt.Errorf("reading kernel symbols: %w", err)
		}
		defer f.Close()
		return search(f, addrs)
	}
	out := make([]string, len(addrs))
	for from := 0; from < len(addrs); from += batch {
		some := addrs[from:min(from+batch, len(addrs))]
		if err := t.ask(some, out[from:]); err != nil {
			return nil, fmt.Errorf("asking the kernel for symbols: %w", err)
		}
	}
	return out, nil
}

func (t *Table) ask(addrs []uint64, out []string) error {
	q := ksymQuestions{Count: uint32(len(addrs))}
	copy(q.Addresses[:], addrs)
	if err := t.objects.Asked.Set(&q); err != nil {
		return err
	}
	if _, err := t.objects.TareKsym.Run(&ebpf.RunOptions{}); err != nil {
		return err
	}
	if err := t.objects.Given.Get(&t.text); err != nil {
		return err
	}
	for i := range addrs {
		out[i] = nameIn(unix.ByteSliceToString(t.text[i][:]))
	}
	return nil
}

// nameIn is the name in "name+0x12/0x345 [module]"; the kernel writes an address that it does not know as "0xffff...".
// A name that did not fit is kept as far as it goes.
func nameIn(text string) string {
	if strings.HasPrefix(text, "0x") {
		return ""
	}
	text, _, _ = strings.Cut(text, " [")
	if plus := strings.LastIndexByte(text, '+'); plus >= 0 {
		text = text[:plus]
	}
	return text
}

// search names addresses from the text of /proc/kallsyms, in one pass and any order: each symbol is noted with the
// address above it, and afterwards the nearest symbol below is carried up.
func search(r io.Reader, addrs []uint64) ([]string, error) {
	type symbol struct {
		start uint64
		name  string
	}
	sorted := slices.Clone(addrs)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	below := make([]symbol, len(sorted)) // the nearest symbol at or below, so far
	seen, shown := false, false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		start, name, ok := parseLine(lines.Bytes())
		if !ok {
			continue
		}
		seen, shown = true, shown || start != 0
		i, _ := slices.BinarySearch(sorted, start)
		if i < len(sorted) && (below[i].name == "" || start > below[i].start) {
			below[i] = symbol{start, string(name)}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading kernel symbols: %w", err)
	}
	if seen && !shown {
		return nil, ErrHidden
	}
	for i := 1; i < len(sorted); i++ {
		if below[i].name == "" {
			below[i] = below[i-1]
		}
	}
	out := make([]string, len(addrs))
	for j, a := range addrs {
		i, _ := slices.BinarySearch(sorted, a)
		out[j] = below[i].name
	}
	return out, nil
}

// parseLine reads "ffffffff81000000 T name\t[module]" and is false for what is no function.
func parseLine(line []byte) (start uint64, name []byte, ok bool) {
	digits, rest, _ := bytes.Cut(line, []byte(" "))
	kind, rest, _ := bytes.Cut(rest, []byte(" "))
	start, err := strconv.ParseUint(string(digits), 16, 64)
	if err != nil || len(kind) != 1 || !bytes.Contains([]byte("tTwW"), kind) {
		return 0, nil, false
	}
	name, _, _ = bytes.Cut(rest, []byte("\t"))
	return start, name, len(name) > 0
}

// Features are the probes of this package.
func Features() []*feature.Probe {
	return []*feature.Probe{feature.New(feature.Status{
		Name:  "kernel-symbols",
		Needs: "Linux 5.14 and CAP_BPF, CAP_PERFMON; else a readable /proc/kallsyms (kernel.kptr_restrict below 2)",
		Lost:  "telling interrupts from tasks, and what the kernel did in a sample",
		Hint:  "run as root; sysctl -w kernel.kptr_restrict=1",
	}, probe)}
}

func probe() (string, error) {
	t := Open()
	defer t.Close()
	if t.byKernel {
		return "from the kernel (bpf_snprintf)", nil
	}
	if _, err := t.Resolve([]uint64{0}); err != nil {
		return "", err
	}
	if errors.Is(t.reason, unix.EPERM) {
		return "from /proc/kallsyms, at about 45 ms of CPU time per read: " + unix.EPERM.Error(), nil
	}
	return "from /proc/kallsyms, at about 45 ms of CPU time per read: " + t.reason.Error(), nil
}
