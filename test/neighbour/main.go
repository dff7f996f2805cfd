// Command neighbour takes a part of every CPU away, as a busy tenant of the same machine does: in bursts of random
// length at real-time priority, which no ordinary process interrupts. Tests and campaigns use it to see which of Tare's
// promises hold on a noisy machine.
//
//	go run ./test/neighbour [-for 60s] [-part 0.5] [-seed 1] [-log]
//
// It ends after the given time, on SIGINT or SIGTERM, and with its parent, and leaves nothing behind. With -log it
// prints a line of JSON for each burst: {"cpu":0,"from_ns":123,"to_ns":456}, the times by CLOCK_MONOTONIC.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/test/neighbour/neighbour"
)

// The main goroutine stays on the main thread, which lives as long as the process: the request for a signal at the
// parent's death (PR_SET_PDEATHSIG) belongs to the thread that made it, and ends with that thread.
func init() { runtime.LockOSThread() }

func main() {
	o := neighbour.Options{}
	flag.DurationVar(&o.For, "for", time.Minute, "how long to run")
	flag.Float64Var(&o.Part, "part", 0.5, "part of every CPU to take, above 0 and at most 0.9")
	flag.Uint64Var(&o.Seed, "seed", 1, "seed of the random lengths of bursts and gaps")
	flag.DurationVar(&o.Shortest, "shortest", neighbour.Shortest, "shortest burst")
	flag.DurationVar(&o.Longest, "longest", neighbour.Longest, "longest burst")
	log := flag.Bool("log", false, "print each burst")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "neighbour: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0); err != nil {
		fmt.Fprintf(os.Stderr, "neighbour: asking for a signal at the parent's death: %v\n", err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	var printErr error
	err := neighbour.Run(ctx, o, func(b neighbour.Burst) {
		if *log && printErr == nil {
			if printErr = out.Encode(b); printErr != nil {
				stop()
			}
		}
	})
	if err == nil {
		err = printErr
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "neighbour: %v\n", err)
		os.Exit(1)
	}
}
