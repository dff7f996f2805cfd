package experiment

import (
	"fmt"

	"tare/internal/load"
	"tare/internal/load/probe"
	"tare/internal/metric"
	"tare/internal/quantity"
	"tare/internal/stats"
)

// probeLoad is the load that makes none: it measures what the machine is like for everybody else.
var probeLoad = &Kind{
	Name:     "probe",
	Summary:  "no load at all: a process that asks to be woken on every CPU and measures how late it is",
	Settings: probe.Settings,
	watches:  true,
	command:  func(site) []string { return []string{"load", "probe", "--role"} },
}

// probeMetrics are what probes tell.
var probeMetrics = []Metric{
	delayed(0.5, "p50"),
	delayed(0.99, "p99"),
	{
		Definition: metric.Definition{Name: "sched_delay_max_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged, Better: metric.Lower, Needs: needDelay, Headline: true, Tail: true,
			How: "The longest of these times in the trial."},
		value: func(m *measurement) (float64, bool) {
			h, ok := m.histogram(probe.Delay)
			if !ok {
				return 0, false
			}
			return float64(h.Max()) / 1e9, true
		},
	},
	{
		Definition: metric.Definition{Name: "bpf_run_seconds", Unit: quantity.Seconds, Rank: metric.RankBPF, Pool: metric.Largest, Cost: true, Better: metric.Lower, Needs: needSamples, Headline: true,
			How: "Mean length of one run of that program of the subject whose runs are longest. Only with a load of kind `probe`; left out where there is no subject."},
		value: (*measurement).longestRun,
	},
}

func (m *measurement) longestRun() (longest float64, ok bool) {
	programs, found := m.programs()
	if _, probed := m.histogram(probe.Delay); !probed || !found {
		return 0, false
	}
	for _, p := range programs {
		if p.NsPerRun != nil {
			longest, ok = max(longest, *p.NsPerRun/1e9), true
		}
	}
	return longest, ok
}

// delayed is a quantile of the delays that the probes saw.
func delayed(q float64, quantile string) Metric {
	return Metric{
		Definition: metric.Definition{
			Name: "sched_delay_" + quantile + "_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged, Better: metric.Lower,
			Needs: needDelay, Headline: true, Tail: q > 0.5,
			How: fmt.Sprintf("Time from when a task of the probe asked to be woken until it ran: %s quantile of all wake-ups on all CPUs. Only with a load of kind `probe`.", quantile),
		},
		value: func(m *measurement) (float64, bool) {
			h, ok := m.histogram(probe.Delay)
			if !ok {
				return 0, false
			}
			ns, ok := stats.Quantile(h, q)
			return ns / 1e9, ok
		},
	}
}

// outsideLimit is the part of the machine's CPU time that others may take in a trial with a probe: what they take looks like a delay too. The edges of a window are
// read by a task that waits like any other: with waits of 0.1 s the part itself is only good to some 0.1 in a window of 1 s.
const outsideLimit = 0.25

// judgeProbe: a probe that never ran in the window has not seen it, and one on a machine that is busy with something else has seen that.
func (m *measurement) judgeProbe(name string, r load.Result) []trip {
	if h, err := r.Histogram(probe.Delay); err != nil || h == nil {
		return []trip{tripped(gateProbe, 0, 1, "%s: no wake-up fell into the window; make the window longer than the interval", name)}
	}
	own, ok := m.cpuRate()
	if cpu := m.ledger.CPU; ok && cpu.Capacity > 0 {
		outside := (cpu.Capacity - cpu.Idle - own*m.ledger.Window.Seconds - m.ledger.Self.CPUSeconds) / cpu.Capacity // steal is a part of it
		if outside > outsideLimit {
			return []trip{tripped(gateOutside, outside, outsideLimit,
				"%s: others took %.0f %% of the machine's CPU time, and %g %% is allowed, for a probe feels them as well; stop what else is running, or take another machine",
				name, 100*outside, 100*outsideLimit)}
		}
	}
	return nil
}
