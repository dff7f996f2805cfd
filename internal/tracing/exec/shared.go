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

// layout identifies the version of the memory that this process and a worker share: LAYOUT in c/worker.c.
const layout = 0x74617265_00000002

// The states of a worker. All except stateReady are final.
const (
	stateReady   = iota + 1
	stateDone    // the schedule is over
	stateStopped // it was stopped before the schedule was over
	stateLayout  // the worker was compiled with a different struct shared
	stateOrphan  // the load's process had ended before the worker began
	stateFailed  // a system call failed that never should
)

// The kinds of failed attempts.
const (
	kindClone  = iota // the code is an errno
	kindExec          // the code is an errno
	kindKilled        // the code is a signal
	kindExited        // the code is an exit code other than 0
	kinds
)

// codes is larger than any errno, signal or exit code.
const codes = 256

// The sizes of histograms for values from 1 to load.Longest, with 3 and with 2 significant digits, in HdrHistogram's
// layout.
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

// shared is the memory that the load's process and a worker share. struct shared in c/worker.c describes its fields.
type shared struct {
	Layout, Size, Parent, CPU uint64
	Name, Argv0               [16]byte
	Argv1                     [64]byte

	Rate, Part, Parts, Begin, Warm, End, Spin uint64

	Stop, State atomic.Uint64

	Step, Error                   uint64
	Made, Failed                  uint64
	Intended, Sent, Done, Late    uint64
	Finished                      uint64
	CPUBefore, CPUAfter           uint64
	ChildError                    uint64
	Errors                        [kinds][codes]uint64
	Latency, Service, Lag, OwnLag fine
	Slices                        [load.Slices]coarse
}

const sharedSize = int(unsafe.Sizeof(shared{}))

// newShared creates the shared memory, and the file from which a worker maps it. The caller must unmap mem, which
// contains s, and close the file.
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

// program writes a program to a file in memory, which the caller must close.
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

// memfd creates a file in memory. From Linux 6.3 on, a flag should say whether the file will be executed. Older kernels
// refuse that flag.
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
