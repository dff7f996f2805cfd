package bpf

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	cmdProgTestRun      = 10
	typeSocketFilter    = 1
	costRuns            = 2000 // runs of one go: 40 us without statistics
	costGoes            = 5    // the fastest counts: what slows a go down is not the program
	smallestEthernetHdr = 14   // bpf_prog_test_run_skb refuses less
)

// MeasureStatsCost measures what the kernel's run statistics add to one run of a program, on this machine: an empty
// program is run many times without and with them, by BPF_PROG_TEST_RUN. It takes about 1 ms of CPU, and fails where
// somebody else has statistics on already.
func MeasureStatsCost() (time.Duration, error) {
	prog, err := loadEmpty()
	if err != nil {
		return 0, fmt.Errorf("loading an empty program: %w", err)
	}
	defer unix.Close(prog)

	without, err := fastest(prog)
	if err != nil {
		return 0, err
	}
	var info progInfo
	if _, err := objInfo(prog, unsafe.Pointer(&info), unsafe.Sizeof(info)); err != nil {
		return 0, fmt.Errorf("reading the counters of an empty program: %w", err)
	}
	if info.RunCnt > 0 {
		return 0, errors.New("run statistics are on already, so their cost cannot be measured")
	}
	stats, err := EnableStats()
	if err != nil {
		return 0, err
	}
	with, err := fastest(prog)
	if err := errors.Join(err, stats.Close()); err != nil {
		return 0, err
	}
	return max(with-without, 0) / costRuns, nil
}

// loadEmpty loads a program that returns 0.
func loadEmpty() (fd int, err error) {
	// r0 = 0; exit (little endian: the code is the first byte; on big endian it is the last)
	insns := [2]uint64{0xb7, 0x95}
	if one := uint16(1); *(*byte)(unsafe.Pointer(&one)) == 0 {
		insns = [2]uint64{0xb7 << 56, 0x95 << 56}
	}
	license := []byte("Dual BSD/GPL\x00")
	attr := struct {
		progType, insnCnt uint32
		insns, license    unsafe.Pointer
		rest              [24]byte // log, kernel version, flags, name: all zero
	}{progType: typeSocketFilter, insnCnt: 2, insns: unsafe.Pointer(&insns), license: unsafe.Pointer(&license[0])}
	fd, err = bpf(cmdProgLoad, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(license)
	return fd, err
}

// fastest is the time of costRuns runs, at best.
func fastest(prog int) (time.Duration, error) {
	packet := make([]byte, smallestEthernetHdr)
	best := time.Duration(1<<63 - 1)
	for range costGoes {
		attr := struct {
			fd, retval, sizeIn, sizeOut uint32
			dataIn, dataOut             unsafe.Pointer
			repeat, duration            uint32
		}{fd: uint32(prog), sizeIn: uint32(len(packet)), dataIn: unsafe.Pointer(&packet[0]), repeat: costRuns}
		start := time.Now()
		if _, err := bpf(cmdProgTestRun, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
			return 0, fmt.Errorf("running an empty program: %w", err)
		}
		best = min(best, time.Since(start))
	}
	return best, nil
}
