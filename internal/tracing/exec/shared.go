package exec

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
)

// layout identifies the memory that role and worker share: LAYOUT in c/worker.c.
const layout = 0x74617265_00000001

// The final states of a worker.
const (
	stateReady   = iota + 1
	stateDone    // the schedule is over
	stateStopped // it was stopped before the schedule was over
	stateLayout  // the worker was compiled with another struct shared
	stateOrphan  // its parent had ended before it began
	stateFailed  // a system call failed that never should
)

// What can prevent an exec.
const (
	kindClone  = iota // by errno
	kindExec          // by errno
	kindKilled        // by signal
	kindExited        // by exit code, if it is not 0
	kinds
)

// codes bounds the values of errno, signals and exit codes.
const codes = 256

// The sizes of histograms of 1 to load.Longest, with 3 and with 2 significant digits, in HdrHistogram's layout.
const (
	fineCounts   = 28672
	coarseCounts = 3968
)

type fine struct {
	N, Sum uint64
	Counts [fineCounts]int64
}

type coarse struct {
	N      uint64
	Counts [coarseCounts]int64
}

// shared is the memory that role and worker share; struct shared in c/worker.c describes the fields.
type shared struct {
	Layout, Size, Parent, CPU uint64
	Name, Argv0               [16]byte
	Argv1                     [64]byte

	Rate, Part, Parts, Begin, Warm, End, Spin uint64

	Stop, State atomic.Uint64

	Step, Error                   uint64
	Made, Failed                  uint64
	Intended, Sent, Done, Late    uint64
	CPUBefore, CPUAfter           uint64
	ChildError                    uint64
	Errors                        [kinds][codes]uint64
	Latency, Service, Lag, OwnLag fine
	Slices                        [load.Slices]coarse
}

const sharedSize = int(unsafe.Sizeof(shared{}))

// newShared makes the memory, and the file through which a worker maps it.
func newShared(name string) (s *shared, mem []byte, file *os.File, err error) {
	if file, err = memfd(name, false); err != nil {
		return nil, nil, nil, err
	}
	if err = file.Truncate(int64(sharedSize)); err == nil {
		mem, err = unix.Mmap(int(file.Fd()), 0, sharedSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("mapping a file in memory: %w", errors.Join(err, file.Close()))
	}
	return (*shared)(unsafe.Pointer(unsafe.SliceData(mem))), mem, file, nil
}

// program puts a program into a file in memory.
func program(name string, code []byte) (*os.File, error) {
	file, err := memfd(name, true)
	if err != nil {
		return nil, err
	}
	if _, err := file.Write(code); err != nil {
		return nil, fmt.Errorf("writing a file in memory: %w", errors.Join(err, file.Close()))
	}
	return file, nil
}

// memfd makes a file in memory. Kernels from 6.3 on require a flag that says whether it will be executed, which older
// ones do not know.
func memfd(name string, executable bool) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_NOEXEC_SEAL
	if executable {
		flags = unix.MFD_CLOEXEC | unix.MFD_EXEC
	}
	fd, err := unix.MemfdCreate(name, flags)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	}
	if executable && errors.Is(err, unix.EACCES) {
		return nil, fault.Wrap(err, fault.Machine, "vm.memfd_noexec", "sysctl -w vm.memfd_noexec=1",
			"this machine does not allow files in memory to be executed, and the load's programs are such files")
	}
	if err != nil {
		return nil, fmt.Errorf("making a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
