package exectrace

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// Alone is the tracer as a command.
var Alone = &kind.Alone{Run: runAlone, Examples: []string{
	"--cgroup /sys/fs/cgroup/mygroup",
	"--output table --for 10s",
	"--output count",
}}

// Process returns the settings of the command. Unlike in specs, the output can also be a table for people.
var Process = func() []param.Setting {
	settings := slices.Concat(Settings, []param.Setting{
		{Name: "cgroup", Type: param.TypeText, Reach: param.ReachFile,
			Doc: "cgroup v2 directory whose processes are traced, with those below it; the whole machine when left out"},
		{Name: "node", Type: param.TypeSwitch, Default: "false",
			Doc: "trace only the PID namespace of this process, and those below it: one node, where several nodes are " +
				"containers on one kernel"},
		{Name: "for", Type: param.TypeDuration, Max: (365 * 24 * time.Hour).Seconds(), Doc: "end by itself after this time"},
	})
	settings[0].Words = Outputs
	return settings
}()

// runAlone traces until ctx ends. SIGUSR1 makes it print statistics. Once ctx has ended, the next SIGINT, SIGTERM or
// SIGHUP kills the process at once, even if it is blocked because nothing reads its output.
func runAlone(ctx context.Context, out, log io.Writer, v param.Values) error {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	o.CgroupDir, o.Node, o.For, o.Lean = v["cgroup"], v.On("node"), v.Duration("for"), true
	defer context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, unix.SIGTERM, unix.SIGHUP) })()
	tell := make(chan os.Signal, 1)
	signal.Notify(tell, unix.SIGUSR1)
	defer signal.Stop(tell)
	o.Tell = tell
	return Run(ctx, o, out, log)
}
