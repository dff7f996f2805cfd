package bpf

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
)

const (
	costRuns            = 2000 // runs in one round: 40 us without statistics
	costGoes            = 5    // rounds; only the fastest counts, because other things slowed down the rest
	smallestEthernetHdr = 14   // bpf_prog_test_run_skb rejects shorter packets
)

// MeasureStatsCost measures what the kernel's run statistics add to one run of a program on this machine: an empty
// program is run many times without and with them, by BPF_PROG_TEST_RUN. It takes about 1 ms of CPU, and fails if
// someone else has already enabled statistics, or if the runs with them were not slower, as on a restless machine.
func MeasureStatsCost() (time.Duration, error) {
	prog, err := ebpf.NewProgram(nothing("tare_cost", nil))
	if err != nil {
		return 0, fmt.Errorf("loading an empty program: %w", err)
	}
	defer prog.Close()

	without, err := fastest(prog)
	if err != nil {
		return 0, err
	}
	var info progInfo
	if _, err := objInfo(prog.FD(), unsafe.Pointer(&info), unsafe.Sizeof(info)); err != nil {
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
	return costOfRun(without, with)
}

// costOfRun returns what statistics added to each of costRuns runs. It fails if that is not positive, because they
// always cost something.
func costOfRun(without, with time.Duration) (time.Duration, error) {
	cost := (with - without) / costRuns
	if cost <= 0 {
		return 0, fmt.Errorf("%d runs took %v at best with run statistics, and %v without", costRuns, with, without)
	}
	return cost, nil
}

// fastest runs a program in costGoes rounds of costRuns runs each, and returns the time of the shortest round.
func fastest(prog *ebpf.Program) (time.Duration, error) {
	packet := make([]byte, smallestEthernetHdr)
	best := time.Duration(1<<63 - 1)
	for range costGoes {
		start := time.Now()
		if _, err := prog.Run(&ebpf.RunOptions{Data: packet, Repeat: costRuns}); err != nil {
			return 0, fmt.Errorf("running an empty program: %w", err)
		}
		best = min(best, time.Since(start))
	}
	return best, nil
}
