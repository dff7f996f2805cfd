package tracer

import (
	"tare/internal/lib/param"
	"tare/internal/workloads/subject/command"
)

// Settings of individual tracers, in addition to those of all tracers.
var (
	bpftraceSettings = []param.Setting{
		{Name: "pages", Type: param.TypeCount, Min: 1, Max: 1 << 20,
			Doc: "pages of its buffer for each CPU (BPFTRACE_PERF_RB_PAGES)"},
		{Name: "args", Type: param.TypeCount, Min: 1, Max: 128,
			Doc: "bytes of an exec's arguments that it delivers; 64 when left out"},
	}
	igSettings = []param.Setting{
		{Name: "image", Type: param.TypeText, Reach: param.ReachCommand,
			Doc: "image of the gadget; `trace_exec:latest` when left out"},
		{Name: "verify-image", Type: param.TypeSwitch,
			Doc: "whether it verifies the image's signature (--verify-image)"},
		{Name: "pull", Type: param.TypeWord, Words: []string{"always", "missing", "never"},
			Doc: "when it pulls the image (--pull)"},
		{Name: "ready-after", Type: param.TypeDuration, Max: 600,
			Doc: "time from its start to the first exec that probes whether it delivers; 0s when left out"},
	}
	tetragonSettings = []param.Setting{
		{Name: "lib", Type: param.TypeText, Reach: param.ReachCommand,
			Doc: "directory of its eBPF objects (--bpf-lib)"},
		readyAfterSetting("after it has said that it listens; 1s when left out"),
	}
	falcoSettings = []param.Setting{
		readyAfterSetting("after it has said that it opens its source; 3s when left out"),
	}
	commandSettings = []param.Setting{
		{Name: "command", Type: param.TypeText, Reach: param.ReachCommand,
			Doc: "command line, in words as a shell cuts it, with `{cgroup_dir}`, `{cgroup_id}`, `{cgroup_path}` of " +
				"the load's control group, `{dir}` for a private directory, `{port}` for a free port and " +
				"`{self}` for tare itself"},
		command.Version,
		{Name: "ready", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "regular expression of the line, on either output, after which it sees every exec"},
		readyAfterSetting("after that line where there is one; 0s when left out"),
		{Name: "ready-probe", Type: param.TypeSwitch,
			Doc: "whether it is ready once it delivers a probing exec; false when left out"},
		{Name: "lines", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "counts events by lines: regular expression of those that are one event each; empty: all"},
		{Name: "json", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "counts events by a running total in lines of JSON: its path, as keys joined by dots"},
		{Name: "prometheus", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "counts events by the sum of a metric's matching samples: its name and labels, such as " +
				"`events_total{type=\"exec\"}`"},
		{Name: "stream", Type: param.TypeWord, Words: Streams,
			Doc: "output with the lines of `lines` or `json`; `stdout` when left out"},
		{Name: "lost-lines", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "adds up its reported losses: regular expression with one group, a number"},
		{Name: "lost-json", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "reads its reported losses from a running total in lines of JSON, as with `json`"},
		{Name: "lost-prometheus", Type: param.TypeText, Reach: param.ReachNothing,
			Doc: "reads its reported losses from a metric, as with `prometheus`"},
		{Name: "lost-stream", Type: param.TypeWord, Words: Streams,
			Doc: "output with the lines of `lost-lines` or `lost-json`; `stderr` when left out"},
		{Name: "url", Type: param.TypeText, Reach: param.ReachAddress,
			Doc: "URL of its metrics, which may contain `{port}`"},
		{Name: "scope", Type: param.TypeWord, Words: Scopes,
			Doc: "execs that it delivers: those of the load's control group, or of the machine; `group` when left out"},
		{Name: "signal", Type: param.TypeWord, Words: StopSignals,
			Doc: "signal on which it delivers the rest and ends; `INT` when left out"},
		{Name: "stop", Type: param.TypeDuration, Min: 0.1, Max: 600,
			Doc: "time that it gets to end after the signal; 15s when left out"},
		{Name: "ask", Type: param.TypeWord, Words: AskSignals,
			Doc: "signal on which it reports its running totals"},
	}
)

// readyAfterSetting returns the setting of tracers that do not reliably report when they see every exec.
func readyAfterSetting(more string) param.Setting {
	return param.Setting{Name: "ready-after", Type: param.TypeDuration, Max: 600,
		Doc: "time until it sees every exec, " + more}
}
