// Package ksym resolves kernel addresses to names. A machine's samples contain a few thousand distinct addresses, each
// of which is resolved once.
//
// Measured on a kernel with 122,000 symbols: 2,000 addresses take 2.6 ms of CPU with a BPF program that queries the
// kernel (Linux 5.14), including loading and unloading, and 47 ms by reading /proc/kallsyms, which older kernels need.
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

// ErrHidden means that the kernel hides addresses: kernel.kptr_restrict, or missing privileges.
var ErrHidden = errors.New("the kernel hides the addresses of its symbols")

// Table resolves addresses. It is not safe for concurrent use.
type Table struct {
	objects  ksymObjects
	byKernel bool
	reason   error // why the program cannot be used
	kallsyms string
	text     [batch][textSize]byte
}

// batch is how many addresses the program takes at once, and textSize the bytes for each answer.
const (
	batch    = len(ksymQuestions{}.Addresses)
	textSize = len(ksymAnswers{}.Text[0])
)

// Open loads the program, or falls back to /proc/kallsyms if it cannot. The caller must close the Table.
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

// Resolve returns the names of the functions that contain the addresses, in the same order; empty if unknown.
// Addresses are used as they are: for a return address, pass the one before it.
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

// nameIn returns the name in "name+0x12/0x345 [module]"; the kernel writes an unknown address as "0xffff...". A
// truncated name is kept as far as it goes.
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

// search resolves addresses from the text of /proc/kallsyms, which may be in any order, in one pass. Each symbol is
// stored with the nearest address at or above it; afterwards each address without a symbol takes that of the address
// below.
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

// parseLine parses "ffffffff81000000 T name\t[module]"; ok is false for anything but functions.
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

// Features returns the probes of this package.
func Features() []*feature.Probe {
	return []*feature.Probe{feature.New(feature.Status{
		Name:  "kernel-symbols",
		Needs: "Linux 5.14 and CAP_BPF, CAP_PERFMON; else a readable /proc/kallsyms (kernel.kptr_restrict below 2)",
		Lost:  "whether a sample saw a task or an interrupt, and what the kernel did there",
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
