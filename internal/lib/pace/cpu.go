package pace

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// ProcessCPU returns the CPU time, in seconds, that this process, without its children, uses between two times of Now.
// It returns after the second time.
func ProcessCPU(ctx context.Context, begin, end int64) (float64, error) {
	thread, err := LockThread(0)
	if err != nil {
		return 0, err
	}
	defer thread.Close()
	var used [2]float64
	for i, at := range []int64{begin, end} {
		if _, err := thread.Until(ctx, at); err != nil {
			return 0, err
		}
		if used[i], err = CPUTime(); err != nil {
			return 0, err
		}
	}
	return used[1] - used[0], nil
}

// CPUTime returns the CPU time, in seconds, that this process, without its children, has used.
func CPUTime() (float64, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("reading the CPU time of this process: %w", err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9, nil
}

// CPUs returns the number of CPUs on which the calling thread may run. If that cannot be read, it returns the number of
// CPUs on which this process could run when it started.
func CPUs() int {
	cpus, err := AllowedCPUs()
	if err != nil {
		return runtime.NumCPU()
	}
	return max(len(cpus), 1)
}

// AllowedCPUs returns the numbers of the CPUs on which the calling thread may run.
func AllowedCPUs() (cpus []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("reading the CPUs that a thread may run on: %w", err)
	}
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// RunOn restricts the calling thread to these CPUs. The goroutine must be locked to the thread.
func RunOn(cpus ...int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("setting the CPU affinity of a thread to %v: %w", cpus, err)
	}
	return nil
}
