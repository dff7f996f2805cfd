package tracer

import (
	"tare/internal/lib/param"
	"tare/internal/workloads/subject/command"
)

// Settings of single tracers, besides those of all tracers.
var (
	bpftraceSettings = []param.Setting{
		{Name: "pages", Type: param.TypeCount, Min: 1, Max: 1 << 20,
			Doc: "pages of its buffer, for each CPU (BPFTRACE_PERF_RB_PAGES); its own choice when left out"},
		{Name: "args", Type: param.TypeCount, Min: 1, Max: 128,
			Doc: "bytes of the arguments of an exec that it delivers; 64 when left out"},
	}
	igSettings = []param.Setting{
		{Name: "image", Type: param.TypeText, Reach: param.ReachCommand,
			Doc: "image of the gadget; `trace_exec:latest` when left out"},
		{Name: "verify-image", Type: param.TypeSwitch,
			Doc: "whether it checks who signed the image (--verify-image); its own choice when left out"},
		{Name: "pull", Type: param.TypeWord, Words: []string{"always", "missing", "never"},
			Doc: "when it gets the image from its registry (--pull); its own choice when left out"},
		{Name: "ready-after", Type: param.TypeDuration, Max: 600,
			Doc: "time from its start until the first exec is made to see whether it delivers it; 0s when left out"},
	}
	tetragonSettings = []param.Setting{
		{Name: "lib", Type: param.TypeText, Reach: param.ReachCommand,
			Doc: "directory of its eBPF objects (--bpf-lib); its own choice when left out"},
		readyAfterSetting("after it has said that it listens; 1s when left out"),
	}
	falcoSettings = []param.Setting{
		readyAfterSetting("after it has said that it opens its source; 3s when left out"),
	}
	commandSettings = []param.Setting{
		{Name: "command", Type: param.TypeText, Reach: param.ReachCommand,
			Doc: "command line, in words as a shell cuts it, with `{cgroup_dir}`, `{cgroup_id}`, `{cgroup_path}` of " +
				"the load's control group, `{dir}` for a directory of its own, `{port}` for a free port and " +
				"`{self}` for tare itself"},
		command.Version,
		{Name: "ready", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "regular expression of the line, on either output, by which it says that it sees every exec from " +
				"now on"},
		readyAfterSetting("after that line where there is one; 0s when left out"),
		{Name: "ready-probe", Type: param.TypeSwitch,
			Doc: "true: it is ready once it has delivered one of the execs that are made for it then, in the load's " +
				"control group; false when left out"},
		{Name: "lines", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "what it delivers is counted by lines: regular expression of those that are an event each; empty: all"},
		{Name: "json", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "or by a running total in lines of JSON: its path, keys with dots between"},
		{Name: "prometheus", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "or by a metric: name and labels, such as `events_total{type=\"exec\"}`; all samples that match are " +
				"added up"},
		{Name: "stream", Type: param.TypeWord, Words: Streams,
			Doc: "output on which the lines of the first two are; `stdout` when left out"},
		{Name: "lost-lines", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "what it says it lost: regular expression with one group, a number; these are added up"},
		{Name: "lost-json", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "or a running total, as `json`"},
		{Name: "lost-prometheus", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "or a metric, as `prometheus`"},
		{Name: "lost-stream", Type: param.TypeWord, Words: Streams,
			Doc: "output on which the lines of the first two are; `stderr` when left out"},
		{Name: "url", Type: param.TypeText, Reach: param.ReachAddress,
			Doc: "page of its metrics, which may have `{port}` in it"},
		{Name: "scope", Type: param.TypeWord, Words: Scopes,
			Doc: "whose execs it delivers: those in the load's control group, or all of the machine; `group` when " +
				"left out"},
		{Name: "signal", Type: param.TypeWord, Words: StopSignals,
			Doc: "signal on which it delivers what it still has, and ends; `INT` when left out"},
		{Name: "stop", Type: param.TypeDuration, Min: 0.1, Max: 600,
			Doc: "time that it gets for that; 15s when left out"},
		{Name: "ask", Type: param.TypeWord, Words: AskSignals,
			Doc: "signal on which it says its running totals; none when left out"},
	}
)

// readyAfterSetting is for tracers that do not reliably report when they see everything.
func readyAfterSetting(more string) param.Setting {
	return param.Setting{Name: "ready-after", Type: param.TypeDuration, Max: 600,
		Doc: "time until it sees every exec, " + more}
}
