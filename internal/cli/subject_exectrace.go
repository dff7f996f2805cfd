package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tare/internal/fault"
	"tare/internal/subject/exectrace"
)

func newExectrace() *cobra.Command {
	o := exectrace.Options{Ring: exectrace.DefaultRing, Lean: true}
	var args int
	c := &cobra.Command{
		Use:   "exectrace",
		Short: "Trace execs, of a control group or the whole machine, until interrupted; SIGUSR1 has the statistics told",
		Example: `  tare subject exectrace --cgroup /sys/fs/cgroup/mygroup
  tare subject exectrace --output table --for 10s
  tare subject exectrace --output count`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// To the package 0 is what nobody has set.
			switch {
			case args < 0:
				return fault.New(fault.Usage, "--args", "give 0 or more", "%d bytes of arguments cannot be kept", args)
			case o.Latency == 0:
				return fault.New(fault.Usage, "--latency", "give 1ms or more", "events wait for the reader at least")
			case o.Ring == 0:
				return fault.New(fault.Usage, "--ring", "give 64KiB or more", "a ring buffer cannot be empty")
			}
			if o.Args = args; args == 0 {
				o.Args = exectrace.NoArgs
			}
			// A second signal ends the process at once, even while whoever reads the output does not.
			defer context.AfterFunc(cmd.Context(), func() { signal.Reset(os.Interrupt, unix.SIGTERM, unix.SIGHUP) })()
			tell := make(chan os.Signal, 1)
			signal.Notify(tell, unix.SIGUSR1)
			defer signal.Stop(tell)
			o.Tell = tell
			out := cmd.OutOrStdout()
			if f := fileOf(out); f != nil {
				out = f // to the file itself, for what a reader who has gone does not get is counted here
			}
			return exectrace.Run(cmd.Context(), o, out, os.Stderr)
		},
	}
	f := c.Flags()
	f.StringVar(&o.CgroupDir, "cgroup", "", "cgroup v2 directory whose processes are traced, with those below it; the whole machine without")
	f.StringVar(&o.Output, "output", exectrace.JSON, strings.Join(exectrace.Outputs, ", ")+": a line for each event, the same for people, or running totals each second")
	f.IntVar(&args, "args", exectrace.DefaultArgs, "bytes of each exec's arguments that are kept")
	f.Var((*sizeFlag)(&o.Ring), "ring", "size of the ring buffer, a power of two: 64KiB, 1MiB")
	f.DurationVar(&o.Latency, "latency", exectrace.DefaultLatency, "how long an event may wait for others, so that they are delivered together")
	f.DurationVar(&o.For, "for", 0, "end by itself after this time")
	return c
}

// sizeFlag is a number of bytes: 65536, 64KiB or 1MiB.
type sizeFlag int

func (s *sizeFlag) Type() string { return "size" }

func (s *sizeFlag) String() string {
	switch n := int(*s); {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "MiB"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "KiB"
	default:
		return strconv.Itoa(n)
	}
}

func (s *sizeFlag) Set(text string) error {
	number, unit := text, 1
	for suffix, bytes := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = n, bytes
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 31)
	if err != nil || n > uint64(1<<40/unit) {
		return fmt.Errorf("must be a number of bytes, such as 65536, 64KiB or 1MiB")
	}
	*s = sizeFlag(int(n) * unit)
	return nil
}
