// Command freestanding makes an executable from one C file that needs no library: it compiles the file with clang, and
// prepends the shortest ELF header that Linux accepts to the machine code. It uses no linker, so any clang can make
// programs for any architecture, always with the same result.
//
// The price is that the file may contain only position-independent code. A global variable, a string or a call of a
// library leaves a relocation or another section in the object, and this command refuses such an object.
//
//	go run ./freestanding -arch arm64 -o worker_arm64.elf c/worker.c
package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"tare/internal/experiment/child"
)

// archs are the supported architectures, by Go's names.
var archs = map[string]struct {
	target  string
	machine elf.Machine
	flags   []string
}{
	"amd64": {"x86_64-linux-gnu", elf.EM_X86_64, []string{"-fPIE", "-fcf-protection=none"}},
	// The tiny code model limits addresses to 1 MB, which one instruction can encode. The other code models need a linker.
	"arm64": {"aarch64-linux-gnu", elf.EM_AARCH64, []string{"-fno-pic", "-mcmodel=tiny"}},
}

func main() {
	arch := flag.String("arch", "", "amd64 or arm64")
	out := flag.String("o", "", "the executable")
	flag.Parse()
	if flag.NArg() != 1 || *out == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := build(flag.Arg(0), *arch, *out); err != nil {
		fmt.Fprintln(os.Stderr, "freestanding:", err)
		os.Exit(1)
	}
}

func build(source, arch, out string) error {
	a, ok := archs[arch]
	if !ok {
		return fmt.Errorf("there is no way to make programs for %q", arch)
	}
	dir, err := os.MkdirTemp("", "tare-freestanding-")
	if err != nil {
		return fmt.Errorf("making a directory for the object: %w", err)
	}
	defer os.RemoveAll(dir)
	object := filepath.Join(dir, "object.o")
	args := slices.Concat([]string{"clang", "--target=" + a.target, "-std=gnu11", "-O2", "-ffreestanding", "-nostdlib",
		"-nostdinc", "-mgeneral-regs-only",
		"-fno-stack-protector", "-fno-jump-tables", "-fno-asynchronous-unwind-tables", "-Wall", "-Wextra", "-Werror"},
		a.flags, []string{"-c", "-o", object, source})
	compile := child.Command{Argv: args, Stdout: os.Stderr, Stderr: os.Stderr}
	if err := child.Run(context.Background(), compile, child.Options{Name: "clang"}); err != nil {
		return fmt.Errorf("compiling %s: %w", source, err)
	}
	code, entry, err := read(object, a.machine)
	if err != nil {
		return fmt.Errorf("%s for %s: %w", source, arch, err)
	}
	if err := os.WriteFile(out, wrap(a.machine, code, entry), 0o644); err != nil {
		return fmt.Errorf("writing the executable: %w", err)
	}
	return nil
}

// read returns an object's code, and the offset of _start in it.
func read(object string, machine elf.Machine) (code []byte, entry uint64, err error) {
	f, err := elf.Open(object)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	if f.Machine != machine {
		return nil, 0, fmt.Errorf("clang made code for %v", f.Machine)
	}
	text := -1
	for i, s := range f.Sections {
		switch {
		case s.Name == ".text":
			text = i
			if code, err = s.Data(); err != nil {
				return nil, 0, fmt.Errorf("reading the code: %w", err)
			}
		case s.Flags&elf.SHF_ALLOC != 0 && s.Size > 0:
			return nil, 0, fmt.Errorf("section %s holds %d bytes: the program has a variable or a string outside of "+
				"its functions", s.Name, s.Size)
		case s.Type == elf.SHT_RELA || s.Type == elf.SHT_REL:
			return nil, 0, fmt.Errorf("section %s wants %d bytes of relocations: the program refers to something outside "+
				"of its code", s.Name, s.Size)
		}
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, 0, fmt.Errorf("reading its symbols: %w", err)
	}
	for _, s := range symbols {
		if s.Name == "_start" && int(s.Section) == text {
			return code, s.Value, nil
		}
	}
	return nil, 0, errors.New("it has no _start")
}

// base is the load address of the program. It must be a multiple of the largest page size.
const base = 0x400000

// wrap makes the executable. It has one loaded segment, which is the whole file with the code, and a stack that is not
// executable.
func wrap(machine elf.Machine, code []byte, entry uint64) []byte {
	const headers, segment = 64, 56
	const offset = (headers + 2*segment + 63) / 64 * 64
	size := uint64(offset + len(code))
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Entry: base + offset + entry,
		Phoff: headers, Ehsize: headers, Phentsize: segment, Phnum: 2, Shentsize: 64,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	h.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	load := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
		Filesz: size, Memsz: size, Align: 0x10000}
	stack := elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16}
	var b bytes.Buffer
	for _, part := range []any{&h, &load, &stack} {
		_ = binary.Write(&b, binary.LittleEndian, part) // a buffer never fails
	}
	b.Write(make([]byte, offset-b.Len()))
	b.Write(code)
	return b.Bytes()
}
