package command

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/process"
	"tare/internal/lib/files"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/scale/host/cgroup"
)

// How a rehearsal watches the CPU time of a command. Compiling and attaching programs, or reading a configuration,
// appears as a burst.
const (
	lookEvery  = 50 * time.Millisecond
	burstSpan  = 250 * time.Millisecond // the time over which a rate is computed
	steadyTime = time.Second            // for how long the rate must have been steady
	mostTime   = 10 * time.Second       // after which the rehearsal stops watching
	holdTime   = 500 * time.Millisecond // for how long the command must keep running if the user said when it is ready
	slackCPUs  = 0.05                   // tolerance of the rate, in addition to twice the final rate
	margin     = 200 * time.Millisecond // added for starts that take longer
)

// Rehearsal is the result of starting a command once by itself.
type Rehearsal struct {
	// ReadyAfter is the duration of the command's start-up, plus a margin. If Settled is false, it is only a default. It
	// is 0 if the user said when the command is ready.
	ReadyAfter time.Duration
	// Settled is false if the command's CPU time never became steady while it was watched.
	Settled bool
}

// Rehearse starts a command once by itself, in control groups that it gets by calling groups, and ends it again. It
// determines whether the command starts, becomes ready and keeps running, and how long its start-up takes. The error is
// the command's.
func Rehearse(
	ctx context.Context, groups func(name string) (kind.Group, error), l *cgroup.Layout, self string, o param.Values,
) (found Rehearsal, err error) {
	c, err := process.OptionsOf(o)
	if err != nil {
		return found, err
	}
	if err := c.Installed(); err != nil {
		return found, err
	}
	work, err := groups("work")
	if err != nil {
		return found, err
	}
	group, err := groups("subject")
	if err != nil {
		return found, err
	}
	var own *files.Scratch
	place, err := newPlace(self, work.V2Dir(), l, o, func() (string, error) {
		own, err = ownDir()
		return own.Path(), err
	})
	defer func() { err = errors.Join(err, own.Close()) }()
	if err != nil {
		return found, err
	}
	if place.Port == 0 {
		if place.Port, err = process.FreePort(); err != nil {
			return found, err
		}
	}
	nowhere := net.JoinHostPort("127.0.0.1", strconv.Itoa(place.Port)) // there are no applications yet
	place.App = func(string) string { return nowhere }
	if c, err = c.At(place); err != nil {
		return found, err
	}
	c.CgroupDir = group.V2Dir()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	began := time.Now()
	running, err := process.Start(c, group.In(""), fail)
	if err != nil {
		return found, err
	}
	defer running.Stop()
	if err := running.Ready(ctx); err != nil {
		return found, err
	}
	if saysWhen(o) {
		found.Settled = true
		return found, pace.Sleep(ctx, holdTime)
	}
	cpu := ""
	if h, ok := l.CPU(); ok {
		cpu, _ = h.Dir(group.Path())
	}
	after, settled, err := watch(ctx, began, func() time.Duration { return time.Duration(cgroup.CPUTime(cpu).N) })
	if err != nil {
		return found, err
	}
	return Rehearsal{ReadyAfter: (after + margin).Round(lookEvery), Settled: settled}, nil
}

// saysWhen reports whether the user said when the command is ready.
func saysWhen(o param.Values) bool {
	says := []string{"ready-port", "ready-line", "ready-http", "ready-file", "ready-after"}
	return slices.ContainsFunc(says, func(name string) bool { return o[name] != "" })
}

// reading is the CPU time of the command, and the time since its start.
type reading struct{ at, cpu time.Duration }

// watch reads the CPU time of a command until its rate has been steady for steadyTime, and returns how long after the
// start it became steady. After mostTime it gives up: it returns holdTime, and settled is false.
func watch(
	ctx context.Context, began time.Time, cpu func() time.Duration,
) (after time.Duration, settled bool, err error) {
	var readings []reading
	for {
		readings = append(readings, reading{time.Since(began), cpu()})
		now := readings[len(readings)-1].at
		from, enough := steadyFrom(readings)
		switch {
		case enough && now-from >= steadyTime:
			return from, true, nil
		case now >= mostTime:
			return holdTime, false, nil
		}
		if err := pace.Sleep(ctx, lookEvery); err != nil {
			return 0, false, err
		}
	}
}

// steadyFrom returns the time from which on a command used CPU time, over any burstSpan, at no more than twice its
// final rate plus slackCPUs. It returns false if there are too few readings.
func steadyFrom(readings []reading) (time.Duration, bool) {
	last := readings[len(readings)-1]
	i := len(readings) - 1
	for i > 0 && last.at-readings[i].at < steadyTime {
		i--
	}
	if last.at-readings[i].at < steadyTime {
		return 0, false
	}
	steady := rate(readings[i], last)
	end := len(readings) - 1
	for start := end; start >= 0; start-- {
		if readings[end].at-readings[start].at < burstSpan {
			continue
		}
		if rate(readings[start], readings[end]) > 2*steady+slackCPUs {
			return readings[end].at, true
		}
		end--
	}
	return readings[0].at, true
}

// rate returns the CPU time per unit of time between two readings, in CPUs.
func rate(a, b reading) float64 { return float64(b.cpu-a.cpu) / float64(b.at-a.at) }
