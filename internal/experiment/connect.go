package experiment

import (
	"fmt"
	"strconv"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/load"
	"tare/internal/load/connect/generation"
	"tare/internal/metric"
	"tare/internal/param"
	"tare/internal/quantity"
	"tare/internal/stats"
	"tare/internal/subject/mesh/kernelmesh"
)

// connectLoad is the load that connects and sends nothing.
var connectLoad = &Kind{
	Name:    "connect",
	Summary: "UDP sockets that connect to services as fast as it goes, and send nothing: where the subject replaces its configuration (`work: replace`), every connection is judged by the endpoint that it comes to",
	alone:   true,
	command: func(at site) []string {
		args := []string{"load", "connect", "--role"}
		if at.replacer != 0 {
			return append(args, "--replacer="+strconv.Itoa(at.replacer))
		}
		args = append(args, "--service="+at.first, "--services="+strconv.Itoa(at.services), "--seed="+strconv.FormatUint(at.seed, 10))
		if at.endpoints {
			args = append(args, "--endpoints")
		}
		return args
	},
	holdsConnections: func(param.Values) bool { return false },
}

// goesTo says of a load whether it goes to an application.
func (k *Kind) goesTo() bool { return !k.watches && !k.alone }

// needsNone says whether there are loads, and none of them goes to an application.
func (s *Spec) needsNone() bool {
	for _, p := range s.Loads {
		if p.Kind.goesTo() {
			return false
		}
	}
	return len(s.Loads) > 0
}

// own says where the services are that the subject of an arm serves by itself.
func (x *trial) own(arm *Part, at *site) {
	at.first, at.services = serviceIP(1+len(x.apps)), x.serviceCount(arm.Options, knobServices)-len(x.apps)
	at.endpoints = arm.Options["peer"] == kernelmesh.PeerEndpoint
	if arm.Options["work"] == kernelmesh.WorkReplace {
		at.replacer = x.subject.cmd.Process.Pid
	}
}

// checkConnects sees that a load of connections has something to connect to in every arm. The error reads on after the path, that of the
// part at fault.
func (s *Spec) checkConnects() (path string, err error) {
	for name, p := range s.Loads {
		if p.Kind != connectLoad {
			continue
		}
		if s.Baseline == nil {
			return "loads." + name, fmt.Errorf("a load of kind %s goes to what the subject serves by itself, and the baseline has no subject: give the spec a %q", connectLoad.Name, baselineKey)
		}
		for _, sec := range s.sections() {
			for arm, part := range sec.parts {
				o := part.Options
				if sec.name != "arms" && sec.name != baselineKey || o["work"] == kernelmesh.WorkReplace && o["peer"] == kernelmesh.PeerEndpoint {
					continue
				}
				if !part.Kind.Serves || o["work"] == kernelmesh.WorkReplace || o[knobProtocol] != "udp" || int(o.Float(knobServices)) <= len(s.Applications) {
					return sec.path(arm), fmt.Errorf("the load %q needs a subject that serves something by itself: write work: %s and peer: %s, or protocol: udp and more %q than there are applications",
						name, kernelmesh.WorkReplace, kernelmesh.PeerEndpoint, knobServices)
				}
			}
		}
	}
	return "", nil
}

// judgeConnect: a connection that came to a wrong endpoint or to none is what is asked for, and no fault of the trial.
func judgeConnect(name string, r load.Result) []trip {
	if r.Counts[generation.Judged] > 0 {
		return nil
	}
	return []trip{tripped(gateIdle, 0, 1, "%s: no connection began in the window; lengthen the duration", name)}
}

// connectMetrics are what the load `connect` and the work `replace` tell.
var connectMetrics = []Metric{
	{Definition: metric.Definition{Name: "replacements_per_second", Unit: quantity.PerSecond, Rank: metric.RankOther, Pool: metric.Sum, Better: metric.Higher, Needs: needWork, Headline: true, How: "Changes of configuration that a subject with `work: replace` makes in a second, one after the other: each gives a service new endpoints in place, and takes another to a new cluster."},
		value: func(m *measurement) (float64, bool) {
			n, ok := worked(generation.Replacements)(m)
			return n / m.seconds(), ok
		}},
	{Definition: metric.Definition{Name: "replacement_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged, Cost: true, Better: metric.Lower, Needs: needWork, Headline: true, How: "Time of one such change, from when it is handed to the store until the store has returned: mean of all that began in the window."},
		value: per(worked(generation.ReplacementSeconds), worked(generation.Replacements))},
	judgedPart("wrong_connect_share", "Part of the connections of a load of kind `connect`, while configuration is replaced, that came to an address which is in neither the old nor the new set of endpoints of the service: the sum of the next three. Pooled over the trials of an arm, as all of these.",
		generation.StaleCount, generation.TornCount, generation.MissedCount),
	judgedPart("stale_connect_share", "Of these, to an endpoint of an older set: the change that took it away had returned before the connection began.", generation.StaleCount),
	judgedPart("torn_connect_share", "Of these, to an address of no set that the service ever had: parts of two.", generation.TornCount),
	judgedPart("missed_connect_share", "Of these, to the address of the service itself: past the mesh.", generation.MissedCount),
	judgedPart("failed_connect_share", "Part of these connections that failed, though the service had endpoints all the time.", generation.FailedCount),
	judgedPart("backward_connect_share", "Part of these connections that came to an endpoint of the old set, where a connection before, to this service or the other of the same change, had come to one of the new.", generation.BackwardCount),
	oldEndpoint("p50", "50th percentile of the changes after whose beginning an old endpoint was seen at all", func(h *hdrhistogram.Histogram) (float64, bool) { return stats.Quantile(h, 0.5) }),
	oldEndpoint("p99", "99th percentile of the same", func(h *hdrhistogram.Histogram) (float64, bool) { return stats.Quantile(h, 0.99) }),
	oldEndpoint("max", "the longest", func(h *hdrhistogram.Histogram) (float64, bool) { return float64(h.Max()), true }),
}

// seconds is the length of the window of a subject's work.
func (m *measurement) seconds() float64 {
	if m.work == nil || m.work.Seconds <= 0 {
		return 1 // there is nothing to divide
	}
	return m.work.Seconds
}

// judgedPart is the part of the connections that were judged which are in some of the load's counts.
func judgedPart(name, how string, counts ...string) Metric {
	return Metric{Definition: metric.Definition{
		Name: name, Unit: quantity.Part, Rank: metric.RankOther, Pool: metric.Counts, Better: metric.Lower, Needs: needWorkCount, Headline: true, How: how,
	}, count: func(m *measurement) (in, of int) {
		for _, r := range m.loads {
			of += int(r.Counts[generation.Judged])
			for _, c := range counts {
				in += int(r.Counts[c])
			}
		}
		return in, of
	}}
}

func oldEndpoint(name, which string, value func(*hdrhistogram.Histogram) (float64, bool)) Metric {
	return Metric{
		Definition: metric.Definition{
			Name: "old_endpoint_" + name + "_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged, Better: metric.Lower,
			Needs: needSeen, Headline: true, Tail: name != "p50",
			How: "How long after a change was handed to the store a connection began that still came to an old endpoint, the last such of each change: " + which + ". Left out where it was never seen, or too seldom for the quantile.",
		},
		value: func(m *measurement) (float64, bool) {
			h, ok := m.histogram(generation.OldEndpoint)
			if !ok {
				return 0, false
			}
			ns, ok := value(h)
			return ns / 1e9, ok
		},
	}
}
