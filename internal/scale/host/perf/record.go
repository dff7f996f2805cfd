package perf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The record types that the sampler requests (include/uapi/linux/perf_event.h, enum perf_event_type).
const (
	recordLost        = 2
	recordExit        = 4
	recordThrottle    = 5
	recordFork        = 7
	recordSample      = 9
	recordLostSamples = 13
	recordKsymbol     = 17
	recordBPFEvent    = 18
)

const (
	headerSize = 8 // struct perf_event_header: u32 type, u16 misc, u16 size

	ksymbolTypeBPF        = 1
	ksymbolFlagUnregister = 1

	bpfEventLoad   = 1 // PERF_BPF_EVENT_PROG_LOAD
	bpfEventUnload = 2 // PERF_BPF_EVENT_PROG_UNLOAD

	// Call chains contain markers (enum perf_callchain_context). As unsigned numbers, none is smaller than
	// PERF_CONTEXT_MAX = -4095.
	contextMax  = ^uint64(4095) + 1
	contextUser = ^uint64(512) + 1 // PERF_CONTEXT_USER: what follows is user code
)

var errTruncated = errors.New("truncated perf record")

// Sample is one sample. Chain aliases the sampler's buffer and is valid only until the callback returns.
type Sample struct {
	Time int64  // CLOCK_MONOTONIC, nanoseconds
	PID  uint32 // thread group; 0 is the idle task
	TID  uint32
	CPU  uint32
	// Cgroup is the id of the group in the hierarchy of the perf_event controller; 0 if the kernel does not provide it.
	Cgroup uint64
	Chain  []uint64 // kernel call chain, innermost first, without markers; Chain[0] is the sampled instruction
	// User is the call chain of user code by frame pointers, innermost first; empty without Options.User. If the sample
	// is of user code, Chain is empty.
	User []uint64
}

// Task is the start or exit of a thread.
type Task struct {
	Exit                 bool
	PID, TID, PPID, PTID uint32 // PTID is the thread that created it
	Time                 int64
}

// Symbol is a change of a BPF symbol: a program's text appeared or disappeared.
type Symbol struct {
	Time    int64
	Start   uint64
	Len     uint32
	Removed bool
	Name    string // bpf_prog_<tag>_<function>, bpf_trampoline_<key>, ...
}

// ProgramEvent is the load or unload of a BPF program. Its symbols precede it on the same CPU.
type ProgramEvent struct {
	Time     int64
	ID       uint32
	Unloaded bool
}

// decodeSample decodes the body of a PERF_RECORD_SAMPLE with the sample type of this package. It reuses chain.
func decodeSample(b []byte, withCgroup bool, chain []uint64) (Sample, []uint64, error) {
	// IP, PID/TID, TIME, CPU/res, nr of CALLCHAIN: in the order of the sample format in perf_event.h.
	const fixed = 8 + 8 + 8 + 8 + 8
	if len(b) < fixed {
		return Sample{}, chain, errTruncated
	}
	ne := binary.NativeEndian
	s := Sample{
		PID:  ne.Uint32(b[8:]),
		TID:  ne.Uint32(b[12:]),
		Time: int64(ne.Uint64(b[16:])),
		CPU:  ne.Uint32(b[24:]),
	}
	nr := ne.Uint64(b[32:])
	rest := b[fixed:]
	if nr > uint64(len(rest))/8 {
		return Sample{}, chain, errTruncated
	}
	chain = chain[:0]
	user := -1
	for i := range nr {
		switch ip := ne.Uint64(rest[i*8:]); {
		case user >= 0 && ip>>63 != 0: // not an address of user code: a process can write anything to its stack
		case ip < contextMax:
			chain = append(chain, ip)
		case ip == contextUser:
			user = len(chain)
		}
	}
	if len(chain) == 0 {
		chain = append(chain, ne.Uint64(b)) // the sample has no stack, only the address of the instruction
	}
	s.Chain = chain
	if user >= 0 {
		s.Chain, s.User = chain[:user:user], chain[user:]
	}
	rest = rest[nr*8:]
	if withCgroup {
		if len(rest) < 8 {
			return Sample{}, chain, errTruncated
		}
		s.Cgroup = ne.Uint64(rest)
	}
	return s, chain, nil
}

func decodeTask(exit bool, b []byte) (Task, error) {
	if len(b) < 24 {
		return Task{}, errTruncated
	}
	ne := binary.NativeEndian
	return Task{
		Exit: exit,
		PID:  ne.Uint32(b), PPID: ne.Uint32(b[4:]), TID: ne.Uint32(b[8:]), PTID: ne.Uint32(b[12:]),
		Time: int64(ne.Uint64(b[16:])),
	}, nil
}

// decodeSymbol decodes PERF_RECORD_KSYMBOL; ok is false for a symbol that is not BPF. The time is in the sample_id
// trailer.
func decodeSymbol(b []byte, trailer int) (s Symbol, ok bool, err error) {
	if len(b) < 16+trailer {
		return s, false, errTruncated
	}
	ne := binary.NativeEndian
	if ne.Uint16(b[12:]) != ksymbolTypeBPF {
		return s, false, nil
	}
	s = Symbol{
		Time:    trailerTime(b),
		Start:   ne.Uint64(b),
		Len:     ne.Uint32(b[8:]),
		Removed: ne.Uint16(b[14:])&ksymbolFlagUnregister != 0,
	}
	s.Name = unix.ByteSliceToString(b[16 : len(b)-trailer])
	return s, true, nil
}

// decodeProgram decodes PERF_RECORD_BPF_EVENT; ok is false for an event of another kind.
func decodeProgram(b []byte, trailer int) (p ProgramEvent, ok bool, err error) {
	if len(b) < 8+trailer {
		return p, false, errTruncated
	}
	ne := binary.NativeEndian
	kind := ne.Uint16(b)
	if kind != bpfEventLoad && kind != bpfEventUnload {
		return p, false, nil
	}
	return ProgramEvent{Time: trailerTime(b), ID: ne.Uint32(b[4:]), Unloaded: kind == bpfEventUnload}, true, nil
}

// sampleIDSize is the size of the trailer that sample_id_all adds to every record other than samples: TID, TIME and
// CPU of the sample type.
const sampleIDSize = 8 + 8 + 8

func trailerTime(b []byte) int64 {
	return int64(binary.NativeEndian.Uint64(b[len(b)-sampleIDSize+8:]))
}

// records calls f with type and body of each record in data. It stops at the first error.
func records(data []byte, f func(typ uint32, body []byte) error) error {
	ne := binary.NativeEndian
	for len(data) > 0 {
		if len(data) < headerSize {
			return errTruncated
		}
		size := int(ne.Uint16(data[6:]))
		if size < headerSize || size > len(data) {
			return fmt.Errorf("perf record of %d bytes with %d left: %w", size, len(data), errTruncated)
		}
		if err := f(ne.Uint32(data), data[headerSize:size]); err != nil {
			return err
		}
		data = data[size:]
	}
	return nil
}
