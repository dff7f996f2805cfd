package keep

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"tare/internal/lib/files"
	"tare/internal/mesh/store"
)

// Kernel accesses maps, and counts operations. It makes system calls directly, because cilium/ebpf allocates memory and
// uses reflection for each call, and a change here makes about a hundred.
type Kernel struct {
	Work store.Work
	attr element
	// Buffers for arguments, on the heap because Kernel is.
	key   [4]byte
	value uint32
}

// element is the member of union bpf_attr for the BPF_MAP_*_ELEM commands.
type element struct {
	fd    uint32
	_     uint32
	key   uint64
	value uint64
	flags uint64
}

// NewKernel makes a Kernel for one goroutine. NewKernel must not be inlined, so that the Kernel is on the heap: the
// kernel gets addresses of its fields, which would change when a stack moves.
//
//go:noinline
func NewKernel() *Kernel { return &Kernel{} }

// call makes a system call for an element. If wait is set, the call may wait for readers, which takes milliseconds, so
// it goes through Go's scheduler, which lets other goroutines run. Other calls take a microsecond, and bypass the
// scheduler, which would add a tenth of that.
func (k *Kernel) call(wait bool, command uintptr, fd int, key, value unsafe.Pointer) error {
	k.attr = element{fd: uint32(fd), key: uint64(uintptr(key)), value: uint64(uintptr(value))}
	k.Work.Syscalls++
	var errno syscall.Errno
	if wait {
		_, _, errno = unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&k.attr)), unsafe.Sizeof(k.attr))
	} else {
		_, _, errno = unix.RawSyscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(&k.attr)), unsafe.Sizeof(k.attr))
	}
	runtime.KeepAlive(key)
	runtime.KeepAlive(value)
	if errno != 0 {
		return errno
	}
	return nil
}

// Update writes an element. key and value must be on the heap.
func (k *Kernel) Update(fd int, key, value []byte) error {
	k.Work.Updates++
	k.Work.Bytes += len(key) + len(value)
	return k.call(false, unix.BPF_MAP_UPDATE_ELEM, fd, unsafe.Pointer(&key[0]), unsafe.Pointer(&value[0]))
}

// UpdateAt is Update with a number as the key.
func (k *Kernel) UpdateAt(fd int, key uint32, value []byte) error {
	return k.Update(fd, k.number(key), value)
}

// Delete removes an element.
func (k *Kernel) Delete(fd int, key []byte) error {
	k.Work.Deletes++
	k.Work.Bytes += len(key)
	return k.call(false, unix.BPF_MAP_DELETE_ELEM, fd, unsafe.Pointer(&key[0]), nil)
}

// DeleteAt is Delete with a number as the key.
func (k *Kernel) DeleteAt(fd int, key uint32) error { return k.Delete(fd, k.number(key)) }

// Lookup reads an element.
func (k *Kernel) Lookup(fd int, key, value []byte) error {
	return k.call(false, unix.BPF_MAP_LOOKUP_ELEM, fd, unsafe.Pointer(&key[0]), unsafe.Pointer(&value[0]))
}

// LookupAt is Lookup with a number as the key.
func (k *Kernel) LookupAt(fd int, key uint32, value []byte) error {
	return k.Lookup(fd, k.number(key), value)
}

func (k *Kernel) number(key uint32) []byte {
	*(*uint32)(unsafe.Pointer(&k.key)) = key
	return k.key[:4]
}

// The three methods below are for maps of maps, for which the kernel waits for readers before the call returns: since
// Linux 6.8, after an update or a deletion that changed something; in earlier versions, after every update, deletion
// and lookup (maybe_wait_bpf_programs in kernel/bpf/syscall.c).

// Set puts a map into a map of maps.
func (k *Kernel) Set(outer int, index uint32, fd int) error {
	k.value = uint32(fd)
	k.Work.Updates++
	k.Work.Bytes += 8
	err := k.call(true, unix.BPF_MAP_UPDATE_ELEM, outer, unsafe.Pointer(&k.number(index)[0]), unsafe.Pointer(&k.value))
	if err == nil || LookupsWait() {
		k.Work.GracePeriods++
	}
	return err
}

// Unset removes a map from a map of maps.
func (k *Kernel) Unset(outer int, index uint32) error {
	k.Work.Deletes++
	k.Work.Bytes += 4
	err := k.call(true, unix.BPF_MAP_DELETE_ELEM, outer, unsafe.Pointer(&k.number(index)[0]), nil)
	if err == nil || LookupsWait() {
		k.Work.GracePeriods++
	}
	return err
}

// Get opens a map that a map of maps holds.
func (k *Kernel) Get(outer int, index uint32) (fd int, err error) {
	wait := LookupsWait()
	if wait {
		k.Work.GracePeriods++
	}
	key := unsafe.Pointer(&k.number(index)[0])
	if err := k.call(wait, unix.BPF_MAP_LOOKUP_ELEM, outer, key, unsafe.Pointer(&k.value)); err != nil {
		return -1, err
	}
	return k.ByID(k.value)
}

// LookupsWait reports whether a lookup in a map of maps waits for readers on this kernel.
var LookupsWait = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version < 6<<16|8<<8
})

// CloseFD closes a descriptor from Get, ByID or Create.
func (k *Kernel) CloseFD(fd int) {
	k.Work.Syscalls++
	files.CloseRaw(fd)
}

// ByID opens a map by its kernel ID.
func (k *Kernel) ByID(id uint32) (fd int, err error) {
	k.Work.Syscalls++
	attr := struct{ id, next, flags uint32 }{id: id}
	return open(unix.BPF_MAP_GET_FD_BY_ID, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// open makes a system call that opens a map.
func open(command uintptr, attr unsafe.Pointer, size uintptr) (fd int, err error) {
	r, _, errno := unix.RawSyscall(unix.SYS_BPF, command, uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// Create creates a map. cilium/ebpf would make a dozen other system calls first.
func (k *Kernel) Create(spec *ebpf.MapSpec) (fd int, err error) {
	k.Work.Syscalls++
	return CreateMap(spec)
}

// CreateMap is Create without counting. Any goroutine may call it.
func CreateMap(spec *ebpf.MapSpec) (fd int, err error) {
	attr := struct {
		kind, key, value, entries, flags, inner, node uint32
		name                                          [unix.BPF_OBJ_NAME_LEN]byte
	}{kind: uint32(spec.Type), key: spec.KeySize, value: spec.ValueSize, entries: spec.MaxEntries, flags: spec.Flags}
	copy(attr.name[:len(attr.name)-1], spec.Name)
	return open(unix.BPF_MAP_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// batch is the member of union bpf_attr for the BPF_MAP_*_BATCH commands.
type batch struct {
	in, out, keys, values uint64
	count, fd             uint32
	elementFlags, flags   uint64
}

// enotsupp is ENOTSUPP, which is internal to the kernel and absent from user-space headers. The kernel returns it if a
// map does not support batches.
const enotsupp = syscall.Errno(524)

// SetAll puts maps into a map of maps, and returns how many it put there. It does not count operations, and any
// goroutine may call it. It waits for readers only once from Linux 6.8 on, and once for each map in earlier versions.
func SetAll(outer int, indexes, fds []uint32) (n int, err error) {
	if len(indexes) == 0 {
		return 0, nil
	}
	if !LookupsWait() {
		attr := &batch{keys: uint64(uintptr(unsafe.Pointer(&indexes[0]))), values: uint64(uintptr(unsafe.Pointer(&fds[0]))),
			count: uint32(len(fds)), fd: uint32(outer)}
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_UPDATE_BATCH, uintptr(unsafe.Pointer(attr)),
			unsafe.Sizeof(*attr))
		runtime.KeepAlive(indexes)
		runtime.KeepAlive(fds)
		if errno == 0 {
			return len(fds), nil
		}
		if errno != unix.EINVAL && errno != enotsupp {
			return 0, errno // n is 0 even if some maps were put; a retry puts them again
		}
	}
	k := NewKernel()
	for n := range fds {
		if err := k.Set(outer, indexes[n], int(fds[n])); err != nil {
			return n, err
		}
	}
	return len(fds), nil
}
