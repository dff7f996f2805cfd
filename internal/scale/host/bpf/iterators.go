package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" -type map_charge -type held iterators bpf/iterators.bpf.c

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Names in the kernel's BTF of what an iterator program attaches to.
const (
	iterMaps  = "bpf_iter_bpf_map"
	iterFiles = "bpf_iter_task_file"
)

// sharedSection is where the programs keep what they share with their loader.
const sharedSection = ".data.shared"

// none marks a field that this kernel lacks; the BPF programs know it as NONE.
const none = 0xffffffff

// An iterator is one loaded BPF iterator program with the link that makes it readable. It costs nothing until it is
// read.
type iterator struct{ prog, link int }

// iterators are this package's own BPF programs and the one map they share.
type iterators struct {
	maps     *iterator // nil: this kernel does not tell to whom a map is charged; mapsErr says why
	mapsErr  error
	files    *iterator // nil: holders are read from /proc; filesErr says why
	filesErr error
	shared   *ebpf.Map // offsets, samples, operations
}

// The fields of kernel structs that the iterators follow: what each cannot do without, and the two ways from a map to
// its control group.
var (
	chargeFields = []field{
		{"bpf_map", "id"}, {"mem_cgroup", "css"}, {"cgroup_subsys_state", "cgroup"}, {"cgroup", "kn"}, {"kernfs_node", "id"},
	}
	holderFields = []field{
		{"bpf_map", "id"}, {"file", "f_op"}, {"file", "private_data"},
		{"task_struct", "tgid"}, {"task_struct", "group_leader"}, {"task_struct", "comm"},
		{"bpf_prog", "aux"}, {"bpf_prog_aux", "id"}, {"bpf_link", "id"},
	}
	ownerFields = []field{{"bpf_map", "objcg"}, {"obj_cgroup", "memcg"}, {"bpf_map", "memcg"}}
)

// iteratorTypes looks up all that the iterators need to know of this kernel.
func iteratorTypes() (*kernelTypes, error) {
	fields := append(append(append([]field(nil), chargeFields...), holderFields...), ownerFields...)
	return readKernelTypes(vmlinuxBTF, []string{iterMaps, iterFiles, "bpf_iter_bpf_prog", "bpf_iter_bpf_link"}, fields)
}

// offset of a field, or none.
func (t *kernelTypes) offset(structure, member string) uint32 {
	if off, ok := t.offsets[field{structure, member}]; ok {
		return off
	}
	return none
}

func (t *kernelTypes) needs(function string, fields []field) error {
	if _, ok := t.functions[function]; !ok {
		return fmt.Errorf("this kernel has no %s", function)
	}
	for _, f := range fields {
		if _, ok := t.offsets[f]; !ok {
			return fmt.Errorf("this kernel has no %s.%s", f.structure, f.member)
		}
	}
	return nil
}

// canCharge reports whether a map of this kernel knows its control group: through an object cgroup since 5.18, directly
// from 5.11.
func (t *kernelTypes) canCharge() error {
	if err := t.needs(iterMaps, chargeFields); err != nil {
		return err
	}
	viaObject := t.offset("bpf_map", "objcg") != none && t.offset("obj_cgroup", "memcg") != none
	if !viaObject && t.offset("bpf_map", "memcg") == none {
		return errors.New("maps of this kernel do not name a control group")
	}
	return nil
}

// loadIteratorPrograms loads whatever of the two works here. An iterator that does not load is no error: its field says
// why.
func loadIteratorPrograms() *iterators {
	it := &iterators{}
	if err := it.load(); err != nil {
		it.Close()
		return &iterators{mapsErr: err, filesErr: err}
	}
	return it
}

func (it *iterators) load() error {
	types, err := iteratorTypes()
	if err != nil {
		return fmt.Errorf("reading the kernel's types: %w", err)
	}
	spec, err := loadIterators()
	if err != nil {
		return fmt.Errorf("reading the embedded iterators: %w", err)
	}
	layout := spec.Maps[sharedSection]
	layout.Name = "tare_iterators"
	layout.Key, layout.Value = nil, nil // type information of the map's own, which would have to be loaded too
	if it.shared, err = ebpf.NewMap(layout); err != nil {
		return fmt.Errorf("making the iterators' map: %w", err)
	}
	state := iteratorsState{}
	state.Offsets.MapId = types.offset("bpf_map", "id")
	state.Offsets.MapObjcg = types.offset("bpf_map", "objcg")
	state.Offsets.MapMemcg = types.offset("bpf_map", "memcg")
	state.Offsets.ObjcgMemcg = types.offset("obj_cgroup", "memcg")
	state.Offsets.MemcgCss = types.offset("mem_cgroup", "css")
	state.Offsets.CssCgroup = types.offset("cgroup_subsys_state", "cgroup")
	state.Offsets.CgroupKn = types.offset("cgroup", "kn")
	state.Offsets.KnId = types.offset("kernfs_node", "id")
	state.Offsets.FileOp = types.offset("file", "f_op")
	state.Offsets.FilePrivate = types.offset("file", "private_data")
	state.Offsets.TaskTgid = types.offset("task_struct", "tgid")
	state.Offsets.TaskLeader = types.offset("task_struct", "group_leader")
	state.Offsets.TaskComm = types.offset("task_struct", "comm")
	state.Offsets.ProgAux = types.offset("bpf_prog", "aux")
	state.Offsets.AuxId = types.offset("bpf_prog_aux", "id")
	state.Offsets.LinkId = types.offset("bpf_link", "id")
	if err := it.shared.Put(uint32(0), &state); err != nil {
		return fmt.Errorf("telling the iterators their offsets: %w", err)
	}

	if it.mapsErr = types.canCharge(); it.mapsErr == nil {
		it.maps, it.mapsErr = it.start(spec.Programs[iteratorsProgTareMaps], types.functions[iterMaps])
	}
	if it.filesErr = types.needs(iterFiles, holderFields); it.filesErr == nil {
		it.files, it.filesErr = it.start(spec.Programs[iteratorsProgTareHolders], types.functions[iterFiles])
	}
	if it.files != nil {
		if it.filesErr = it.learn(&state); it.filesErr != nil {
			it.files.close()
			it.files = nil
		}
	}
	return nil
}

// start loads one program and links it. cilium/ebpf would load it too, but reads all of vmlinux's BTF to find the one
// id that it attaches to.
func (it *iterators) start(spec *ebpf.ProgramSpec, function uint32) (*iterator, error) {
	if err := spec.Instructions.AssociateMap(sharedSection, it.shared); err != nil {
		return nil, fmt.Errorf("binding the map of iterator %s: %w", spec.Name, err)
	}
	var code bytes.Buffer
	if err := spec.Instructions.Marshal(&code, binary.LittleEndian); err != nil {
		return nil, fmt.Errorf("assembling iterator %s: %w", spec.Name, err)
	}
	prog, err := loadIterator(spec.Name, code.Bytes(), function)
	if err != nil {
		return nil, fmt.Errorf("loading iterator %s: %w", spec.Name, err)
	}
	link, err := linkIterator(prog)
	if err != nil {
		unix.Close(prog)
		return nil, fmt.Errorf("linking iterator %s: %w", spec.Name, err)
	}
	return &iterator{prog: prog, link: link}, nil
}

// learn teaches the holders iterator the kinds of files, from one descriptor of each kind.
func (it *iterators) learn(state *iteratorsState) error {
	state.Samples.Tgid = uint32(os.Getpid())
	state.Samples.Fd = [4]uint32{uint32(it.shared.FD()), uint32(it.files.prog), uint32(it.files.link), none}
	dummy := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
	if perf, err := unix.PerfEventOpen(&dummy, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC); err == nil {
		defer unix.Close(perf)
		state.Samples.Fd[3] = uint32(perf)
	}
	if err := it.shared.Put(uint32(0), state); err != nil {
		return fmt.Errorf("giving the holders iterator its samples: %w", err)
	}
	if _, err := it.files.read(nil); err != nil {
		return err
	}
	if err := it.shared.Lookup(uint32(0), state); err != nil {
		return fmt.Errorf("reading what the holders iterator learnt: %w", err)
	}
	if state.Operations[0] == 0 {
		return errors.New("the holders iterator did not see its own process")
	}
	state.Samples.Tgid = 0 // report from now on
	if err := it.shared.Put(uint32(0), state); err != nil {
		return fmt.Errorf("starting the holders iterator: %w", err)
	}
	return nil
}

// Close unloads the programs. It may be called on what did not load.
func (it *iterators) Close() {
	it.maps.close()
	it.files.close()
	it.maps, it.files = nil, nil
	if it.shared != nil {
		it.shared.Close()
		it.shared = nil
	}
}

func (i *iterator) close() {
	if i != nil {
		unix.Close(i.link)
		unix.Close(i.prog)
	}
}

// read runs the iterator over all its objects and appends what it wrote to buf.
func (i *iterator) read(buf []byte) ([]byte, error) {
	attr := struct{ link, flags uint32 }{link: uint32(i.link)}
	fd, err := bpf(cmdIterCreate, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return buf, fmt.Errorf("opening a BPF iterator: %w", err)
	}
	defer unix.Close(fd)
	for {
		if cap(buf)-len(buf) < 4096 {
			buf = append(buf, make([]byte, 16384)...)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		// EAGAIN: a million objects without output; reading goes on where it stopped
		case err == unix.EINTR, err == unix.EAGAIN:
		case err != nil:
			return buf, fmt.Errorf("reading a BPF iterator: %w", err)
		case n == 0:
			return buf, nil
		default:
			buf = buf[:len(buf)+n]
		}
	}
}

// records cuts an iterator's output into values of T.
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

// loadIterator is BPF_PROG_LOAD of an iterator over the kernel function with this BTF id.
func loadIterator(name string, code []byte, function uint32) (int, error) {
	attr := struct {
		progType, count    uint32
		insns, license     unsafe.Pointer
		logLevel, logSize  uint32
		log                unsafe.Pointer
		kernVersion, flags uint32
		name               [16]byte
		ifindex            uint32
		attachType         uint32
		btfFD, funcRecSize uint32
		funcInfo           uint64
		funcCount          uint32
		lineRecSize        uint32
		lineInfo           uint64
		lineCount          uint32
		attachBTFID        uint32
	}{
		progType: uint32(ebpf.Tracing), count: uint32(len(code) / 8), insns: unsafe.Pointer(&code[0]),
		license: unsafe.Pointer(&[]byte("GPL\x00")[0]), attachType: uint32(ebpf.AttachTraceIter), attachBTFID: function,
	}
	copy(attr.name[:15], name)
	return bpf(cmdProgLoad, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

// linkIterator is BPF_LINK_CREATE of an iterator without parameters.
func linkIterator(prog int) (int, error) {
	attr := struct {
		prog, target, attachType, flags uint32
		info                            uint64
		infoLen, _                      uint32
	}{prog: uint32(prog), attachType: uint32(ebpf.AttachTraceIter)}
	return bpf(cmdLinkCreate, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}
