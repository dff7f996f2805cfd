package probe

import (
	"context"
	"fmt"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest implements the load for the engine. The load uses no application, and measures how long any task waits for a
// CPU.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name:     "probe",
		Summary:  "no load at all: a process that asks to be woken on every CPU and measures how late it is",
		Settings: Settings,
		InPods:   true,
		Alone:    &kind.Alone{Examples: []string{"--duration 10s"}},

		Saturates: kind.Always, // a probe measures what else keeps the machine busy
	}
}

func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	return Run(ctx, Options{Interval: v.Duration("interval")}, conn)
}

func (guest) Metrics() []measured.Metric { return metrics }

func (guest) Gates() []*measured.Gate { return []*measured.Gate{gateProbe, gateOutside} }

var (
	gateProbe = &measured.Gate{Name: "probe", Breaks: []measured.Need{measured.Probed}, Quiet: ledger.Unknown,
		Why: "a probe that never ran saw no delay"}
	gateOutside = &measured.Gate{Name: "outside", Breaks: []measured.Need{measured.Alone}, Quiet: ledger.Neighbour,
		Why: "what others take looks like a delay, and is missing from the machine"}
)

// metrics are the metrics of probes.
var metrics = []measured.Metric{
	delayed(0.5, "p50"),
	delayed(0.99, "p99"),
	{
		Definition: metric.Definition{
			Name: "sched_delay_max_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged,
			Better: metric.Lower, Needs: measured.NeedDelay, Headline: true, Tail: true, Family: "sched", Limit: usableDelay,
			How: "Time from when a task of the probe asked to be woken until it ran, of all wake-ups on all CPUs: " +
				"maximum. Only with a load of kind `probe`.",
		},
		Value: measured.Seconds(Delay, measured.Longest),
	},
	{
		Definition: metric.Definition{Name: "bpf_run_seconds", Family: "bpf", Unit: quantity.Seconds, Rank: metric.RankBPF,
			Pool: metric.Largest, Cost: true, Better: metric.Lower, Needs: measured.NeedSamples, Headline: true,
			How: "Mean length of one run of the subject's program with the longest runs. Only with a load of kind `probe`."},
		Value: longestRun,
	},
}

func longestRun(m *measured.Measured) (longest float64, ok bool) {
	programs, found := m.Programs()
	if _, probed := m.Histogram(Delay); !probed || !found {
		return 0, false
	}
	for _, p := range programs {
		if p.NsPerRun != nil {
			longest, ok = max(longest, *p.NsPerRun/1e9), true
		}
	}
	return longest, ok
}

// delayed returns the metric of a quantile of the delays.
func delayed(q float64, quantile string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: "sched_delay_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged,
			Better: metric.Lower,
			Needs:  measured.NeedDelay, Headline: true, Tail: q > 0.5, Family: "sched",
			How: fmt.Sprintf("Time from when a task of the probe asked to be woken until it ran, of all wake-ups on all "+
				"CPUs: %s quantile. Only with a load of kind `probe`.", quantile),
		},
		Value: measured.Seconds(Delay, measured.Quantile(q)),
	}
}

// outsideLimit is the fraction of the machine's CPU time that other processes may take in a trial with a probe, because
// that time looks like a delay too. The task that reads the clocks at the edges of a window waits for a CPU like any
// other task: with waits of 0.1 s, the fraction is only accurate to about 0.1 in a window of 1 s.
const outsideLimit = 0.25

// Judge rejects a trial whose probe never ran in the window, and one on a machine that was busy with other work.
func (guest) Judge(m *measured.Measured, name string) []measured.Trip {
	result := m.Loads[name]
	if h, err := result.Histogram(Delay); err != nil || h == nil {
		return []measured.Trip{measured.Tripped(gateProbe, 0, 1,
			"%s: no wake-up fell into the window; make the window longer than the interval", name)}
	}
	own, ok := m.CPURate()
	cpu := m.Ledger.CPU
	if !ok || cpu.Capacity <= 0 {
		return nil
	}
	// outside includes the CPU time that the hypervisor stole.
	outside := (cpu.Capacity - cpu.Waited() - own*m.Ledger.Window.Seconds - m.Ledger.Self.CPUSeconds) / cpu.Capacity
	if outside <= outsideLimit {
		return nil
	}
	return []measured.Trip{measured.Tripped(gateOutside, outside, outsideLimit,
		"%s: %s took %.0f %% of the machine's CPU time, and %g %% is allowed, because they delay the probe as well; "+
			"stop what else is running, or take another machine",
		name, m.Outsiders(), 100*outside, 100*outsideLimit)}
}
