// Command agent is an agent whose cost is known: it burns 5 % of a CPU, holds 50 MB, and has an eBPF program that makes
// every IPv4 connection from a control group take 100 us longer. It stands for somebody else's agent: tests and benches
// plant it to see whether Tare measures all three correctly.
//
//	planted-agent CGROUP
//
// CGROUP is the directory of a cgroup v2 control group. The agent exits on SIGTERM.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/test/agent/agent"
)

//go:generate clang -O2 -mcpu=v3 -target bpfel -Wall -Wextra -Werror -Wno-unused-parameter -g -fno-ident -fdebug-compilation-dir . -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu -c bpf/agent.bpf.c -o agent.bpf.o
//go:generate llvm-strip -g agent.bpf.o

//go:embed agent.bpf.o
var object []byte

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "planted-agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give the directory of one control group, not %d arguments", len(args))
	}
	detach, err := attach(args[0])
	if err != nil {
		return err
	}
	defer detach()
	debug.FreeOSMemory() // gives back the memory that loading took
	debug.SetGCPercent(-1)
	if err := hold(agent.MemoryBytes); err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	return burn(agent.CPUs, end)
}

// attach makes the eBPF program run whenever a process in the control group opens an IPv4 connection.
func attach(cgroup string) (detach func(), err error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("reading the program: %w", err)
	}
	busy := uint64(agent.BPFSeconds * 1e9)
	if err := spec.Variables["busy_ns"].Set(busy); err != nil {
		return nil, fmt.Errorf("setting its weight: %w", err)
	}
	made, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("loading the program: %w", err)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{
		Path: cgroup, Attach: ebpf.AttachCGroupInet4Connect, Program: made.Programs["planted"],
	})
	if err != nil {
		made.Close()
		return nil, fmt.Errorf("attaching the program to %s: %w", cgroup, err)
	}
	return func() {
		_ = l.Close() // the link goes with the process in any case
		made.Close()
	}, nil
}

// hold maps and touches anonymous memory until the process has the wanted number of bytes. It returns an error if the
// process already has as many.
func hold(want int) error {
	has, err := anonymous()
	if err != nil {
		return err
	}
	if has >= want {
		return fmt.Errorf("it has %d bytes by itself, more than it is to hold", has)
	}
	ballast, err := unix.Mmap(-1, 0, want-has, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("taking memory: %w", err)
	}
	for i := 0; i < len(ballast); i += os.Getpagesize() {
		ballast[i] = 1
	}
	return nil
}

// anonymous returns the anonymous memory of this process in bytes (proc_pid_smaps_rollup(5)).
func anonymous() (int, error) {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			kb, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("smaps_rollup says nothing of anonymous memory")
}

// burn makes the whole process use the given number of CPUs, whatever else the process does, until a signal arrives.
// Once per period it burns the CPU time by which the process is behind.
func burn(cpus float64, end <-chan os.Signal) error {
	const period = 10 * time.Millisecond
	begin, used := clock(unix.CLOCK_MONOTONIC), clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return nil
		case <-tick.C:
		}
		due := used + time.Duration(cpus*float64(clock(unix.CLOCK_MONOTONIC)-begin))
		for clock(unix.CLOCK_PROCESS_CPUTIME_ID) < due {
		}
	}
}

func clock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err) // Linux always has these two clocks
	}
	return time.Duration(ts.Nano())
}
