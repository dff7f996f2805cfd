package bpf

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
)

// Mapped holds the memory into which View has mapped the elements of eBPF maps.
type Mapped struct{ memory [][]byte }

// View is like MapArray, and adds the memory to m, whose Close unmaps it.
func View[T any](m *Mapped, of *ebpf.Map) ([]T, error) {
	elements, memory, err := MapArray[T](of)
	if err == nil {
		m.memory = append(m.memory, memory)
	}
	return elements, err
}

// Close unmaps everything. No element of a View may be used afterwards.
func (m *Mapped) Close() error {
	errs := lists.Map(m.memory, unix.Munmap)
	m.memory = nil
	return errors.Join(errs...)
}

// MapArray maps the elements of m into memory, which this process then shares with eBPF programs. m must be an array
// with the flag BPF_F_MMAPABLE. Its values must have the size of a T, which must be a multiple of 8 bytes, because the
// kernel pads each element to that. memory consists of whole pages; the caller must unmap it when the elements are no
// longer used.
func MapArray[T any](m *ebpf.Map) (elements []T, memory []byte, err error) {
	size, n, page := int(m.ValueSize()), int(m.MaxEntries()), unix.Getpagesize()
	if size != int(unsafe.Sizeof(*new(T))) {
		return nil, nil, fmt.Errorf("mapping %s: its elements are not %d bytes", m, unsafe.Sizeof(*new(T)))
	}
	memory, err = unix.Mmap(m.FD(), 0, (size*n+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %s: %w", m, err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), n), memory, nil
}
