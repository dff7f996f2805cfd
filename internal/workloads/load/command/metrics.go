package command

import (
	"encoding/json"
	"fmt"
	"os"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
	"tare/internal/workloads/load/command/tool"
)

var (
	// gateWindow trips unless the program ran during the whole window.
	gateWindow = &measured.Gate{
		Name: "program-window", Breaks: []measured.Need{measured.Worked, measured.Rated}, Quiet: ledger.Generator,
		Why: "a load ran for a part of the window only",
	}
	// gateTouched trips if other processes took too much of the machine.
	gateTouched = &measured.Gate{
		Name: "tool-disturbed", Breaks: []measured.Need{measured.Untouched}, Quiet: ledger.Unknown,
		Why: "a tool cannot separate the requests that a stall of the machine touched",
	}
	// gateOutput trips if the tool's output could not be parsed.
	gateOutput = &measured.Gate{
		Name: "tool-output", Breaks: []measured.Need{measured.Read}, Quiet: ledger.Unknown,
		Why: "what a tool measured is unknown, at least for one load",
	}
)

// Gates returns the gates of the load.
func (guest) Gates() []*measured.Gate { return []*measured.Gate{gateWindow, gateTouched, gateOutput} }

// ownOf decodes what is known about a load's program. ok is false for a load of another kind.
func ownOf(r load.Result) (own Own, ok bool) {
	if r.Generator != Generator || r.Own == nil {
		return own, false
	}
	return own, json.Unmarshal(r.Own, &own) == nil
}

// Judge judges the load. The load has no schedule, so nothing can be late.
func (guest) Judge(m *measured.Measured, name string) []measured.Trip {
	j := m.JudgeLoad(name)
	own, ok := ownOf(j.Result)
	if !ok {
		return nil
	}
	if seen, whole := own.WindowSeconds, j.Result.Seconds; seen < whole {
		j.Trip(gateWindow, seen/whole, 1, "it ran for %.2f s of the %g s of the window%s; have it run for {seconds} "+
			"seconds, or make the warm-up longer than it takes to start", seen, whole, lastWords(own))
	}
	if own.Unread != "" {
		j.Trip(gateOutput, 0, 1, "%s; see what it prints, or write tool: none", own.Unread)
	}
	if own.Said != nil {
		judgeTime(j, own)
		judgeSaid(j, *own.Said, m.Setup.Gates.Float("errors"))
		judgeTouched(j, m)
	}
	return j.Trips
}

func lastWords(own Own) string {
	if own.LastWords == "" {
		return ""
	}
	return ", and its last words were: " + own.LastWords
}

// judgeTime compares the duration in the tool's output with Tare's clock: a shell around a tool may wait before and
// after it, or print an old output. The tolerance is a tenth, plus 0.1 s for when the tool's clock starts and stops.
func judgeTime(j *measured.LoadJudge, own Own) {
	seconds, whole := own.Said.Seconds, j.Result.Seconds
	switch {
	case seconds == nil:
	case *seconds > 1.1*own.WallSeconds+0.1:
		j.Trip(gateOutput, *seconds, own.WallSeconds, "it says that it took %.3g s, and its program was there for %.3g s: "+
			"what it printed is of another run", *seconds, own.WallSeconds)
	case *seconds < 0.9*min(whole, own.WindowSeconds)-0.1:
		j.Trip(gateWindow, *seconds/whole, 1, "%s says that it took %.3g s, and the window has %g s; have it run for "+
			"{seconds} seconds", own.Said.Tool, *seconds, whole)
	}
}

// judgeSaid applies the gates to the requests that the tool reports.
func judgeSaid(j *measured.LoadJudge, said tool.Reading, allowed float64) {
	failed, of, exact := failures(said)
	if failed > 0 && of == 0 {
		j.Trip(gateOutput, 0, 1, "%d requests failed, and %s contradicts itself about how many there were; see what it "+
			"prints, or write tool: none", failed, said.Tool)
	}
	if said.Requests != nil && failed == of {
		j.Trip(measured.GateIdle, 0, 1, "not one request was answered without error, %s; see the errors of the trial",
			said.Label())
	}
	if seen := measured.Ratio(failed, of); seen > allowed {
		least := "at least "
		if exact {
			least = ""
		}
		j.Trip(measured.GateErrors, seen, allowed, "%s%d of %d requests failed, as %s counts them; lower its load, or see "+
			"what the application says", least, failed, of, said.Tool)
	}
}

// mostTaken is the fraction of the machine's CPU time that other processes may take from a tool. It is fixed, because
// that time lowers a closed loop's rate about in proportion, or by twice as much if the load and the server have one
// CPU each.
const mostTaken = 0.1

// judgeTouched trips gateTouched if other processes took more CPU time than a tool tolerates. It judges nothing if
// nodes of the same run share the machine, because it cannot distinguish them from other processes.
func judgeTouched(j *measured.LoadJudge, m *measured.Measured) {
	if m.Shared {
		return
	}
	d := measured.DisturbanceOf(m.Ledger, os.Getpid(), m.Tree)
	if seen := d.Stolen + d.Foreign; seen > mostTaken {
		j.Trip(gateTouched, seen, mostTaken, "%s took %.0f %% of the CPU time, and %g %% is allowed where a tool "+
			"cannot tell which requests that touched; stop what else is running here", m.Outsiders(), 100*seen,
			100*mostTaken)
	}
}

// failures returns how many requests failed, and the number of all requests, which is 0 if the tool does not report it.
// If exact is false, more may have failed. Some tools count failed requests among their requests, and some do not.
func failures(said tool.Reading) (failed, of int64, exact bool) {
	failed = said.ErrorsAtLeast
	if exact = said.Errors != nil; exact {
		failed = *said.Errors
	}
	switch {
	case said.Requests != nil:
		of = max(*said.Requests+said.Beside, failed)
	case said.Rate != nil && said.Seconds != nil:
		of = max(int64(*said.Rate**said.Seconds), failed)
	}
	return failed, of, exact
}

// ownClock ends the descriptions of metrics that a tool measures.
const ownClock = " By the tool's clock, over its whole run, warm-up included: not comparable with Tare's own " +
	"loads, which measure between the edges of the window. docs/commands.md says what each tool's clock measures."

// oneTool ends the descriptions of metrics that cannot be added up.
const oneTool = " Absent where the tool does not print it, and where several loads or nodes do."

// needs are the conditions under which a tool's metrics are valid. These metrics cover the tool's whole run, in open or
// closed loop, and the effect of stalls on them is unknown.
var needs = []measured.Need{
	measured.Whole, measured.Worked, measured.Complete, measured.Unthrottled, measured.Held, measured.Alone, measured.Read,
	measured.Untouched,
}

// Metrics returns the metrics that Tare measures from outside, and those that the tools print.
func (guest) Metrics() []measured.Metric {
	all := []measured.Metric{{
		Definition: metric.Definition{
			Name: "tool_rate_per_second", Unit: quantity.PerSecond, Rank: metric.RankThroughput, Pool: metric.Sum,
			Better: metric.Higher, Needs: needs, Headline: true,
			How: "Requests or operations per second as load generators of kind `command` print them, added up over the loads. " +
				"Most count failed requests too: void where more failed than the gate `errors` allows." + ownClock,
		},
		Value: toolRate,
	}, {
		Definition: metric.Definition{
			Name: "tool_error_ratio", Unit: quantity.Part, Rank: metric.RankThroughput, Pool: metric.Merged,
			Better: metric.Lower, Needs: []measured.Need{measured.Read}, Outcome: true,
			How: "Requests that failed, of all, as the load generator counts them." + ownClock + oneTool,
		},
		Value: ofTool(func(r tool.Reading) *float64 {
			failed, of, exact := failures(r)
			if !exact || of == 0 {
				return nil
			}
			return new(measured.Ratio(failed, of))
		}),
	}}
	all = append(all,
		latency("mean", "mean", false, func(r tool.Reading) *float64 { return r.Mean }),
		latency("p50", "p50 quantile", true, func(r tool.Reading) *float64 { return r.P50 }),
		latency("p90", "p90 quantile", false, func(r tool.Reading) *float64 { return r.P90 }),
		latency("p99", "p99 quantile", true, func(r tool.Reading) *float64 { return r.P99 }),
		latency("p999", "p99.9 quantile", false, func(r tool.Reading) *float64 { return r.P999 }),
		latency("max", "maximum", false, func(r tool.Reading) *float64 { return r.Max }))
	return append(all, outsideMetrics...)
}

// latency returns the metric of one number in the latency distribution that a tool prints.
func latency(name, what string, headline bool, of func(tool.Reading) *float64) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: "tool_latency_" + name + "_seconds", Unit: quantity.Seconds, Rank: metric.RankLatency, Pool: metric.Merged,
			Better: metric.Lower, Needs: needs, Headline: headline, Tail: name != "mean" && name != "p50",
			How: fmt.Sprintf("Latency as the load generator prints it: %s.", what) + ownClock + oneTool,
		},
		Value: ofTool(of),
	}
}

var outsideMetrics = []measured.Metric{{
	Definition: metric.Definition{
		Name: "machine_connections_per_second", Unit: quantity.PerSecond, Rank: metric.RankOther, Pool: metric.Largest,
		Needs: []measured.Need{measured.Whole, measured.Worked},
		How: "TCP connections that the machine opened in the window, by anyone in Tare's network namespace. Only with a " +
			"load of kind `command`.",
	},
	Value: machineConnections,
}, {
	Definition: metric.Definition{
		Name: "load_wall_seconds", Unit: quantity.Seconds, Rank: metric.RankGenerator, Pool: metric.Largest,
		Needs: measured.NeedNothing,
		How:   "From the start of a load of kind `command` until its end, by Tare's clock; the longest of several.",
	},
	Value: func(m *measured.Measured) (longest float64, found bool) {
		for _, own := range programs(m) {
			longest, found = max(longest, own.WallSeconds), true
		}
		return longest, found
	},
}}

// programs returns what is known about the programs of the loads of this kind.
func programs(m *measured.Measured) (all []Own) {
	for _, r := range m.Loads {
		if own, ok := ownOf(r); ok {
			all = append(all, own)
		}
	}
	return all
}

// toolRate adds up the rates of the loads. The result is false if a load whose output is parsed does not print one.
func toolRate(m *measured.Measured) (total float64, found bool) {
	for _, own := range programs(m) {
		switch {
		case own.Said == nil && own.Unread == "": // its output is not parsed
		case own.Said == nil || own.Said.Rate == nil:
			return 0, false
		default:
			total, found = total+*own.Said.Rate, true
		}
	}
	return total, found
}

// ofTool returns a function that gets a value from the output of a tool, if exactly one of the loads has it.
func ofTool(of func(tool.Reading) *float64) func(*measured.Measured) (float64, bool) {
	return func(m *measured.Measured) (float64, bool) {
		var found *float64
		for _, own := range programs(m) {
			if own.Said == nil {
				continue
			}
			v := of(*own.Said)
			if v == nil {
				continue
			}
			if found != nil {
				return 0, false
			}
			found = v
		}
		if found == nil {
			return 0, false
		}
		return *found, true
	}
}

// machineConnections returns the connections per second on the machine, from the first load that counted them.
func machineConnections(m *measured.Measured) (float64, bool) {
	for _, own := range programs(m) {
		if own.Opened != nil && own.OpenedSeconds > 0 {
			return float64(*own.Opened) / own.OpenedSeconds, true
		}
	}
	return 0, false
}

var _ kind.Joiner = guest{}
