// Package ksym gives kernel addresses their names. Samples of the machine hold a few thousand different addresses, each
// of which is asked for once.
//
// Measured on a kernel with 122,000 symbols: 2,000 addresses take 2.6 ms of CPU by a BPF program that asks the kernel
// (Linux 5.14), loading and unloading it included, and 47 ms by reading /proc/kallsyms, which is the way on older
// kernels.
package ksym

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" ksym bpf/ksym.bpf.c

import (
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

// Symbol is the function around an address. Name is empty where the kernel knows none.
type Symbol struct {
	Name   string
	Module string // "bpf" for BPF programs; empty for the kernel itself
	Start  uint64 // address; 0 where unknown
	Size   uint64 // bytes; 0 where unknown. From /proc/kallsyms it is the distance to the next function
}

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

// Resolve names addresses, in their order. An address that the kernel does not know gives an empty Symbol. Addresses
// are taken as they are: for a return address, pass the one before it.
func (t *Table) Resolve(addrs []uint64) ([]Symbol, error) {
	if !t.byKernel {
		f, err := os.Open(t.kallsyms)
		if err != nil {
			return nil, fmt.Errorf("reading kernel symbols: %w", err)
		}
		defer f.Close()
		return search(f, addrs)
	}
	out := make([]Symbol, len(addrs))
	for from := 0; from < len(addrs); from += batch {
		some := addrs[from:min(from+batch, len(addrs))]
		if err := t.ask(some, out[from:]); err != nil {
			return nil, fmt.Errorf("asking the kernel for symbols: %w", err)
		}
	}
	return out, nil
}

func (t *Table) ask(addrs []uint64, out []Symbol) error {
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
		text := t.text[i][:]
		if n := bytes.IndexByte(text, 0); n >= 0 {
			text = text[:n]
		}
		out[i] = parseSymbol(string(text), addrs[i])
	}
	return nil
}

// parseSymbol reads "name+0x12/0x345 [module]"; the kernel writes an address that it does not know as "0xffff...". A
// name that did not fit is kept as far as it goes.
func parseSymbol(text string, addr uint64) Symbol {
	if text == "" || strings.HasPrefix(text, "0x") {
		return Symbol{}
	}
	var s Symbol
	rest, module, ok := strings.Cut(text, " [")
	if ok {
		s.Module, _, _ = strings.Cut(strings.TrimSuffix(module, "]"), " ") // without a build id
	}
	plus := strings.LastIndexByte(rest, '+')
	if plus < 0 {
		s.Name = rest
		return s
	}
	s.Name = rest[:plus]
	offset, size, ok := strings.Cut(rest[plus+1:], "/")
	o, err1 := strconv.ParseUint(strings.TrimPrefix(offset, "0x"), 16, 64)
	n, err2 := strconv.ParseUint(strings.TrimPrefix(size, "0x"), 16, 64)
	if ok && err1 == nil && err2 == nil && o <= addr {
		s.Start, s.Size = addr-o, n
	}
	return s
}

// search names addresses from the text of /proc/kallsyms, in one pass and any order: each symbol is noted with its
// neighbours among the addresses, and afterwards the nearest symbol below is carried up and the nearest above down.
func search(r io.Reader, addrs []uint64) ([]Symbol, error) {
	sorted := slices.Clone(addrs)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	below := make([]Symbol, len(sorted)) // the nearest symbol at or below, so far
	above := make([]uint64, len(sorted)) // the start of the nearest symbol above, so far
	seen, shown := false, false
	err := eachLine(r, func(line []byte) {
		start, name, module, ok := parseLine(line)
		if !ok {
			return
		}
		seen, shown = true, shown || start != 0
		i, _ := slices.BinarySearch(sorted, start)
		if i < len(sorted) && (below[i].Name == "" || start > below[i].Start) {
			below[i] = Symbol{Name: string(name), Module: string(module), Start: start}
		}
		if i > 0 && (above[i-1] == 0 || start < above[i-1]) { // it is above the address before
			above[i-1] = start
		}
	})
	if err != nil {
		return nil, fmt.Errorf("reading kernel symbols: %w", err)
	}
	if seen && !shown {
		return nil, ErrHidden
	}
	for i := 1; i < len(sorted); i++ {
		if below[i].Name == "" {
			below[i] = below[i-1]
		}
	}
	for i := len(sorted) - 2; i >= 0; i-- {
		if above[i] == 0 {
			above[i] = above[i+1]
		}
	}
	out := make([]Symbol, len(addrs))
	for j, a := range addrs {
		i, _ := slices.BinarySearch(sorted, a)
		out[j] = below[i]
		if out[j].Name != "" && above[i] > out[j].Start {
			out[j].Size = above[i] - out[j].Start
		}
	}
	return out, nil
}

// parseLine reads "ffffffff81000000 T name\t[module]" and is false for what is no function.
func parseLine(line []byte) (start uint64, name, module []byte, ok bool) {
	i := 0
	for ; i < len(line) && i < 16; i++ {
		c := line[i]
		switch {
		case c >= '0' && c <= '9':
			start = start<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			start = start<<4 | uint64(c-'a'+10)
		default:
			return 0, nil, nil, false
		}
	}
	if len(line) < i+4 || line[i] != ' ' || line[i+2] != ' ' {
		return 0, nil, nil, false
	}
	switch line[i+1] {
	case 't', 'T', 'w', 'W':
	default:
		return 0, nil, nil, false
	}
	name, module, _ = bytes.Cut(line[i+3:], []byte("\t"))
	return start, name, bytes.Trim(module, "[]"), len(name) > 0
}

// eachLine visits the lines of a text; a line longer than the buffer, which no symbol is, is passed over.
func eachLine(r io.Reader, visit func(line []byte)) error {
	buf := make([]byte, 65536)
	n := 0
	for {
		m, err := r.Read(buf[n:])
		n += m
		rest := buf[:n]
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			visit(rest[:i])
			rest = rest[i+1:]
		}
		if len(rest) == len(buf) {
			rest = nil
		}
		n = copy(buf, rest)
		if err == io.EOF {
			if n > 0 {
				visit(buf[:n])
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
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
