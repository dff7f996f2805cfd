package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" -type map_charge -type held iterators bpf/iterators.bpf.c

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// none stands for a missing descriptor.
const none = 0xffffffff

// iterator is a loaded BPF iterator program with the link that makes it readable. It costs nothing until it is read.
type iterator struct {
	program *ebpf.Program
	link    *link.Iter
}

// Iterators are this package's own BPF programs. Loading them requires the kernel's types, which take megabytes of
// memory. Inventories can share Iterators, so that the types are read only once. The zero value is loaded when an
// inventory is opened with it. The caller must close it after the inventories.
//
// A program that cannot be loaded is not an error: its error field has the reason.
type Iterators struct {
	loaded   bool
	maps     *iterator // nil: this kernel cannot show which group a map is charged to; mapsErr says why
	mapsErr  error
	files    *iterator // nil: holders are read from /proc; filesErr says why
	filesErr error
	shared   *ebpf.Map // state of the files program: sample descriptors, and the file operations learned from them
}

// load loads whichever of the two programs work here, unless that has been done. types are the kernel's types; if it is
// nil, load reads them.
func (it *Iterators) load(types *btf.Cache) {
	if it.loaded {
		return
	}
	it.loaded = true
	spec, err := loadIterators()
	if err != nil {
		err = fmt.Errorf("reading the embedded iterators: %w", err)
		it.mapsErr, it.filesErr = err, err
		return
	}
	options := ebpf.CollectionOptions{Cache: cmp.Or(types, btf.NewCache())}
	// The programs use only types of the kernel proper. By default, the library would read those of all modules too.
	if options.Programs.KernelTypes, err = options.Cache.Kernel(); err != nil {
		it.mapsErr, it.filesErr = err, err
		return
	}
	var charges struct {
		Program *ebpf.Program `ebpf:"tare_maps"`
	}
	if it.mapsErr = spec.LoadAndAssign(&charges, &options); it.mapsErr == nil {
		it.maps, it.mapsErr = start(charges.Program)
	}
	var holders struct {
		Program *ebpf.Program `ebpf:"tare_holders"`
		Shared  *ebpf.Map     `ebpf:".data.shared"`
	}
	if it.filesErr = spec.LoadAndAssign(&holders, &options); it.filesErr != nil {
		return
	}
	it.shared = holders.Shared
	if it.files, it.filesErr = start(holders.Program); it.filesErr != nil {
		return
	}
	if it.filesErr = it.learn(); it.filesErr != nil {
		it.files.close()
		it.files = nil
	}
}

// start links a program, and closes it if that fails.
func start(program *ebpf.Program) (*iterator, error) {
	l, err := link.AttachIter(link.IterOptions{Program: program})
	if err != nil {
		program.Close()
		return nil, fmt.Errorf("linking an iterator: %w", err)
	}
	return &iterator{program, l}, nil
}

// learn teaches the holders iterator the kinds of files, using one descriptor of each kind.
func (it *Iterators) learn() error {
	var state iteratorsState
	state.Samples.Tgid = uint32(os.Getpid())
	state.Samples.Fd = [4]uint32{uint32(it.shared.FD()), uint32(it.files.program.FD()), uint32(it.files.link.FD()), none}
	dummy := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
	if perf, err := unix.PerfEventOpen(&dummy, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC); err == nil {
		defer unix.Close(perf)
		state.Samples.Fd[3] = uint32(perf)
	}
	if err := it.shared.Put(uint32(0), &state); err != nil {
		return fmt.Errorf("giving the holders iterator its samples: %w", err)
	}
	if _, err := it.files.read(nil); err != nil {
		return err
	}
	if err := it.shared.Lookup(uint32(0), &state); err != nil {
		return fmt.Errorf("reading what the holders iterator learnt: %w", err)
	}
	if state.Operations[0] == 0 {
		return errors.New("the holders iterator did not see its own process")
	}
	state.Samples.Tgid = 0 // report from now on
	if err := it.shared.Put(uint32(0), &state); err != nil {
		return fmt.Errorf("starting the holders iterator: %w", err)
	}
	return nil
}

// Close unloads the programs. It may also be called if loading failed.
func (it *Iterators) Close() {
	it.maps.close()
	it.files.close()
	if it.shared != nil {
		it.shared.Close()
	}
	*it = Iterators{}
}

func (i *iterator) close() {
	if i != nil {
		i.link.Close()
		i.program.Close()
	}
}

// read runs the iterator over all its objects and appends what it wrote to buf.
func (i *iterator) read(buf []byte) ([]byte, error) {
	r, err := i.link.Open()
	if err != nil {
		return buf, fmt.Errorf("opening a BPF iterator: %w", err)
	}
	defer r.Close()
	for {
		if cap(buf)-len(buf) < 4096 {
			buf = slices.Grow(buf, 16384)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			return buf, nil
		case errors.Is(err, unix.EAGAIN): // a million objects without output; reading continues where it stopped
		case err != nil:
			return buf, fmt.Errorf("reading a BPF iterator: %w", err)
		}
	}
}

// records splits an iterator's output into values of T.
func records[T any](b []byte) ([]T, error) {
	var v T
	size := binary.Size(v)
	if len(b)%size != 0 {
		return nil, fmt.Errorf("an iterator wrote %d bytes, which are no multiple of %d: %w", len(b), size,
			io.ErrUnexpectedEOF)
	}
	out := make([]T, len(b)/size)
	_, err := binary.Decode(b, binary.LittleEndian, out)
	return out, err
}
