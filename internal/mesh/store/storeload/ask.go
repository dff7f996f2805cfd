package storeload

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
)

// Answer is a store's answer to a program in the kernel.
type Answer struct {
	Verdict        mesh.Verdict
	Endpoint       netip.AddrPort // for Accept
	Cluster        uint32         // store.NoCluster if none was chosen
	MaxConnections uint32
	Generation     uint64 // of the configuration, for Accept; 0 if the store has no generations
}

// Asker queries a store with the design's program, in the kernel. Each goroutine needs a separate Asker: see Another.
type Asker struct {
	program *ebpf.Program
	run     testRun
	packet  packet
}

// address, question and answer have the layouts of bpf/store.h.
type address struct {
	ip   [16]byte
	port [2]byte
	_    [2]byte
}

type question struct {
	from, to address
	protocol uint32
	_        uint32
	random   uint64
}

type answer struct {
	endpoint       address
	cluster        uint32
	maxConnections uint32
	verdict        uint32
	generation     uint64
}

// packet is an Ethernet header with a question and room for an answer. The padding aligns the question.
type packet struct {
	_        [2]byte
	ethernet [14]byte
	question question
	answer   answer
}

// testRun is the member of union bpf_attr for BPF_PROG_TEST_RUN.
type testRun struct {
	program, retval       uint32
	sizeIn, sizeOut       uint32
	in, out               uint64
	repeat, duration      uint32
	ctxSizeIn, ctxSizeOut uint32
	ctxIn, ctxOut         uint64
	flags, cpu, batch, _  uint32
}

const packetSize = uint32(unsafe.Sizeof(packet{}) - 2)

// LoadAsk loads the design's program with the given maps, those of a store of this design. The caller must close the
// Asker.
func LoadAsk(d store.Design, maps map[string]*ebpf.Map) (*Asker, error) {
	spec, err := d.Ask()
	if err != nil {
		return nil, err
	}
	replace := map[string]*ebpf.Map{}
	for name, m := range maps {
		if s := spec.Maps[name]; s != nil {
			s.MaxEntries = m.MaxEntries() // set at run time
			replace[name] = m
		}
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, fmt.Errorf("loading the program ask of store %s: %w", d.Name, err)
	}
	defer loaded.Close()
	program := loaded.DetachProgram("ask")
	if program == nil {
		return nil, fmt.Errorf("store %s: there is no program ask", d.Name)
	}
	return newAsker(program), nil
}

func newAsker(program *ebpf.Program) *Asker {
	a := &Asker{program: program}
	a.packet.ethernet[12] = 0x08 // IPv4, so that the kernel accepts the packet
	return a
}

// Another returns an Asker of the same program for another goroutine. The new Asker must not be closed, and must not be
// used after a is closed.
func (a *Asker) Another() *Asker { return newAsker(a.program) }

// Verified returns how many instructions the kernel's verifier processed for the program, over all paths. ok is false
// before Linux 5.16, which does not report the number.
func (a *Asker) Verified() (n uint32, ok bool) {
	info, err := a.program.Info()
	if err != nil {
		return 0, false
	}
	return info.VerifiedInstructions()
}

// Close unloads the program.
func (a *Asker) Close() error { return a.program.Close() }

// Ask makes one query. It panics if the kernel refuses to run the program, which would be a bug of this package.
func (a *Asker) Ask(q mesh.Question, random uint64) Answer {
	a.set(q, random)
	a.kernel(1)
	got := &a.packet.answer
	out := Answer{Verdict: mesh.Verdict(got.verdict), Cluster: got.cluster, MaxConnections: got.maxConnections,
		Generation: got.generation}
	if out.Verdict == mesh.Accept {
		out.Endpoint = fromKernel(got.endpoint)
	}
	return out
}

// Repeat makes the same query n times in the kernel and returns the mean time of one run, which the kernel rounds down
// to whole nanoseconds.
func (a *Asker) Repeat(q mesh.Question, random uint64, n int) time.Duration {
	a.set(q, random)
	a.kernel(uint32(n))
	return time.Duration(a.run.duration)
}

func (a *Asker) set(q mesh.Question, random uint64) {
	a.packet.question = question{from: toKernel(q.From), to: toKernel(q.To), protocol: uint32(q.Protocol), random: random}
	a.packet.answer = answer{}
}

// kernel runs the program by a direct system call, because cilium/ebpf allocates memory for every run. Readers must be
// fast enough to run while a writer makes a change.
func (a *Asker) kernel(repeat uint32) {
	data := uint64(uintptr(unsafe.Pointer(&a.packet.ethernet)))
	for {
		a.run = testRun{program: uint32(a.program.FD()), sizeIn: packetSize, sizeOut: packetSize, in: data, out: data,
			repeat: repeat}
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&a.run)),
			unsafe.Sizeof(a.run))
		runtime.KeepAlive(a)
		if errno == unix.EINTR || errno == unix.EAGAIN {
			continue
		}
		if errno != 0 || a.run.sizeOut != packetSize || a.run.retval != a.packet.answer.verdict {
			panic(fmt.Sprintf("storeload: running the program ask: %v, %d bytes, returned %d, verdict %d", errno, a.run.sizeOut,
				int32(a.run.retval), a.packet.answer.verdict))
		}
		return
	}
}

func toKernel(a netip.AddrPort) (out address) {
	if a.Addr().IsValid() {
		out.ip = a.Addr().As16()
	}
	out.port = [2]byte{byte(a.Port() >> 8), byte(a.Port())}
	return out
}

func fromKernel(a address) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.ip).Unmap(), uint16(a.port[0])<<8|uint16(a.port[1]))
}
