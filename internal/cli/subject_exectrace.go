package cli

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tare/internal/lib/param"
	"tare/internal/tracing/exectrace"
)

func newExectrace() *cobra.Command {
	var cgroup string
	var length time.Duration
	var values param.Values
	c := &cobra.Command{
		Use:   "exectrace",
		Short: "Trace execs, of a control group or the whole machine, until interrupted; SIGUSR1 prints statistics",
		Example: `  tare subject exectrace --cgroup /sys/fs/cgroup/mygroup
  tare subject exectrace --output table --for 10s
  tare subject exectrace --output count`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := exectrace.OptionsOf(values)
			if err != nil {
				return wrongUse(cmd, err)
			}
			o.CgroupDir, o.For, o.Lean = cgroup, length, true
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
			return exectrace.Run(cmd.Context(), o, out, stderr)
		},
	}
	settings := slices.Clone(exectrace.Settings)
	settings[0].Words = exectrace.Outputs // a table too, which is for people
	f := c.Flags()
	values = param.Flags(f, settings...)
	f.StringVar(&cgroup, "cgroup", "", "cgroup v2 directory whose processes are traced, with those below it; "+
		"the whole machine without")
	f.DurationVar(&length, "for", 0, "end by itself after this time")
	return c
}
