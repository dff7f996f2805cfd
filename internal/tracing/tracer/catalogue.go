package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tare/internal/experiment/kind"
	cmdline "tare/internal/experiment/process"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	execload "tare/internal/tracing/exec"
	"tare/internal/tracing/exectrace"
	"tare/internal/workloads/subject/command"
)

// Entry is one known tracer.
type Entry struct {
	Name     string
	Summary  string
	Settings []param.Setting // in addition to the settings of all tracers
	Process  []param.Setting // for Tare's own tracer: kind.About.Process
	Alone    *kind.Alone     // for Tare's own tracer: kind.About.Alone
	// Make makes the tracer from its settings, by name. An error is about their values, and continues a sentence that
	// begins with the tracer's name.
	Make func(map[string]string) (*Tracer, error)
}

// Catalogue lists the known tracers. The last entry is for any command line.
var Catalogue = []Entry{
	{Name: "exectrace", Summary: "Tare's own tracer of execs", Settings: exectrace.Settings, Make: ownTracer,
		Process: exectrace.Process, Alone: exectrace.Alone},
	{Name: "bpftrace", Summary: "bpftrace, with a program that prints the same facts about an exec as exectrace",
		Settings: bpftraceSettings, Make: bpftrace},
	{Name: "ig", Summary: "Inspektor Gadget's trace_exec, by ig", Settings: igSettings, Make: ig},
	{Name: "tetragon", Summary: "Tetragon, without Kubernetes", Settings: tetragonSettings, Make: tetragon},
	{Name: "falco", Summary: "Falco with one rule, which matches every exec", Settings: falcoSettings, Make: falco},
	{Name: command.Name, Summary: "any other tracer, as a command line", Settings: commandSettings, Make: ofCommand},
}

// Lookup returns the entry with a name, or nil if there is none.
func Lookup(name string) *Entry {
	return lists.Find(Catalogue, func(e *Entry) bool { return e.Name == name })
}

// stopTime is the default of Tracer.StopTime. bpftrace takes half a second of CPU time to end, and may be limited to a
// twentieth of a CPU.
const stopTime = 15 * time.Second

func ownTracer(o map[string]string) (*Tracer, error) {
	if _, err := exectrace.OptionsOf(o); err != nil {
		return nil, err
	}
	t := &Tracer{
		Argv:  []string{self, "subject", "exectrace", "--cgroup={cgroup_dir}"},
		Ready: Ready{Pattern: regexp.MustCompile(`^exectrace: ready`)},
		Lost:  &Source{Stream: Stderr, JSON: []string{"lost"}},
		Scope: execload.ScopeGroup, Stop: syscall.SIGINT, StopTime: stopTime,
		Delivered: Source{Stream: Stdout, Lines: &matcher{all: true}},
	}
	t.Argv = append(t.Argv, param.Values(o).Args(exectrace.Settings)...)
	if o["output"] == "count" {
		// With this output exectrace prints totals once per second. A signal makes it print them at once, as statistics.
		t.Delivered, t.Ask = Source{Stream: Stderr, JSON: []string{"delivered"}}, syscall.SIGUSR1
	}
	return t, nil
}

// bpftraceProgram prints the time, pid, parent, user, control group, name, file and arguments of an exec, as exectrace
// does. It uses the only hook that has all of these and needs no kprobe. A line that begins with a dash is not an
// event: it reports that the probes are attached.
const bpftraceProgram = `tracepoint:sched:sched_process_exec /cgroup == {cgroup_id}/ {` +
	` $t = (struct task_struct *)curtask; $m = $t->mm;` +
	` printf("%llu %d %d %d %llu %s %s %r\n", nsecs, pid, $t->real_parent->tgid, uid, cgroup, comm,` +
	` str(args->filename), buf(uptr($m->arg_start), ARGS)); }` +
	` interval:ms:50 { if (@ready == 0) { @ready = 1; printf("- ready\n"); } } END { clear(@ready); }`

func bpftrace(o map[string]string) (*Tracer, error) {
	args := "64"
	if v, ok := o["args"]; ok {
		args = v
	}
	t := &Tracer{
		Argv:        []string{"bpftrace", "-e", strings.Replace(bpftraceProgram, "ARGS", args, 1)},
		Filesystems: []filesystem{tracefs},
		Version:     []string{"bpftrace", "--version"},
		Ready:       Ready{Pattern: regexp.MustCompile(`^- ready`)},
		Delivered:   Source{Stream: Stdout, Lines: mustCompile(`^[0-9]`)},
		Lost:        &Source{Sum: mustCompile(`^Lost ([0-9]+) events`)}, // the stream depends on bpftrace's version
		Scope:       execload.ScopeGroup, Stop: syscall.SIGINT, StopTime: stopTime,
		Install: "apt-get install bpftrace",
	}
	if n, err := strconv.Atoi(args); err == nil && n > 64 {
		t.Env = append(t.Env, "BPFTRACE_STRLEN="+args) // the default limit for strings is 64
	}
	if v, ok := o["pages"]; ok {
		t.Env = append(t.Env, "BPFTRACE_PERF_RB_PAGES="+v)
	}
	return t, nil
}

func ig(o map[string]string) (*Tracer, error) {
	t := &Tracer{
		Argv: []string{"ig", "run", cmp.Or(o["image"], "trace_exec:latest"), "--host", "--output=json"},
		// Without these, ig ends at once. It could mount them itself (--auto-mount-filesystems), but for the whole machine.
		Filesystems: []filesystem{debugfs, tracefs},
		Version:     []string{"ig", "version"},
		Ready:       Ready{After: readyAfter(o, 0), Probe: true}, // ig does not report when it is ready
		Delivered:   Source{Stream: Stdout, Lines: mustCompile(`^{`)},
		Lost:        &Source{Stream: Stderr, Sum: mustCompile(`lost ([0-9]+) samples`)},
		Scope:       execload.ScopeMachine, Stop: syscall.SIGINT, StopTime: stopTime,
		Install: "get ig and its gadgets from https://github.com/inspektor-gadget/inspektor-gadget/releases",
	}
	for _, name := range []string{"verify-image", "pull"} {
		if v, ok := o[name]; ok {
			t.Argv = append(t.Argv, "--"+name+"="+v)
		}
	}
	return t, nil
}

func tetragon(o map[string]string) (*Tracer, error) {
	events, err := parseSelector(`tetragon_events_total{type="PROCESS_EXEC"}`)
	if err != nil {
		return nil, err
	}
	lost, err := parseSelector("tetragon_bpf_missed_events_total")
	if err != nil {
		return nil, err
	}
	t := &Tracer{
		Argv: []string{"tetragon", "--metrics-server=127.0.0.1:{port}", "--server-address=unix://{dir}/tetragon.sock",
			"--bpf-dir=tare-{cgroup_id}", "--export-filename={dir}/export.json", "--enable-k8s-api=false"},
		Version:   []string{"tetragon", "--version"},
		Ready:     Ready{Pattern: regexp.MustCompile(`Listening for events`), After: readyAfter(o, time.Second)},
		Delivered: Source{Metric: events, URL: "http://127.0.0.1:{port}/metrics"},
		Lost:      &Source{Metric: lost},
		Scope:     execload.ScopeMachine, Stop: syscall.SIGINT, StopTime: stopTime,
		Install: "get tetragon from https://github.com/cilium/tetragon/releases",
	}
	if lib, ok := o["lib"]; ok {
		t.Argv = append(t.Argv, "--bpf-lib="+lib)
	}
	return t, nil
}

const falcoConfig = `engine:
  kind: modern_ebpf
rules_files: ["{dir}/rules.yaml"]
load_plugins: []
json_output: true
json_include_tags_property: false
priority: debug
buffered_outputs: true
log_stderr: true
log_syslog: false
stdout_output: {enabled: true}
syslog_output: {enabled: false}
file_output: {enabled: false}
metrics: {enabled: true, interval: 1s, output_rule: false, kernel_event_counters_enabled: true}
webserver: {enabled: true, listen_address: 127.0.0.1, listen_port: {port}, prometheus_metrics_enabled: true}
`

const falcoRules = `- rule: tare_exec
  desc: every exec
  condition: evt.type in (execve, execveat) and evt.dir=<
  output: "%proc.pid %proc.ppid %user.uid %proc.name %proc.exepath %proc.cmdline"
  priority: INFORMATIONAL
`

func falco(o map[string]string) (*Tracer, error) {
	lost, err := parseSelector("falcosecurity_scap_n_drops_total")
	if err != nil {
		return nil, err
	}
	return &Tracer{
		Argv:      []string{"falco", "-c", "{dir}/falco.yaml"},
		Files:     map[string]string{"falco.yaml": falcoConfig, "rules.yaml": falcoRules},
		Version:   []string{"falco", "--version"},
		Ready:     Ready{Pattern: regexp.MustCompile(`Opening 'syscall' source`), After: readyAfter(o, 3*time.Second)},
		Delivered: Source{Stream: Stdout, Lines: mustCompile(`"rule":"tare_exec"`), URL: "http://127.0.0.1:{port}/metrics"},
		Lost:      &Source{Metric: lost},
		Scope:     execload.ScopeMachine, Stop: syscall.SIGINT, StopTime: stopTime,
		Install: "see https://falco.org/docs/setup/packages",
	}, nil
}

// ofCommand makes a tracer from the settings commandSettings, which describe any program.
func ofCommand(o map[string]string) (*Tracer, error) {
	t := &Tracer{
		Scope: execload.Scope(cmp.Or(o["scope"], string(execload.ScopeGroup))),
		Stop:  signals[cmp.Or(o["signal"], "INT")], StopTime: stopTime, Ask: signals[o["ask"]],
		Install: "install it, or write the command with its whole path",
	}
	var err error
	if t.Argv, err = words(o, "command"); err != nil {
		return nil, err
	}
	if len(t.Argv) == 0 {
		return nil, errors.New(`needs a "command", the command line that starts it`)
	}
	if _, ok := o["version"]; ok {
		if t.Version, err = words(o, "version"); err != nil {
			return nil, err
		}
	}
	if text, ok := o["ready"]; ok {
		if t.Ready.Pattern, err = regexp.Compile(text); err != nil {
			return nil, fmt.Errorf(`has a "ready" that is not a regular expression: %w`, err)
		}
	}
	t.Ready.After, t.Ready.Probe = readyAfter(o, 0), o["ready-probe"] == "true"
	if d, err := time.ParseDuration(o["stop"]); err == nil {
		t.StopTime = d
	}
	delivered, err := source(o, "", Stdout)
	if err != nil {
		return nil, err
	}
	if delivered == nil {
		return nil, errors.New(`does not say how its events are counted: give one of "lines", "json" and "prometheus"`)
	}
	t.Delivered = *delivered
	if t.Lost, err = source(o, "lost-", Stderr); err != nil {
		return nil, err
	}
	t.Delivered.URL = o["url"]
	if metrics := t.Delivered.Metric != nil || t.Lost != nil && t.Lost.Metric != nil; metrics != (o["url"] != "") {
		if metrics {
			return nil, errors.New(`needs a "url" of the page with its metrics`)
		}
		return nil, errors.New(`has a "url", and nothing is counted by a metric: give "prometheus"`)
	}
	return t, nil
}

// words splits the command line in a setting into words.
func words(o map[string]string, name string) ([]string, error) {
	err := cmdline.CheckPlaceholders(o[name], placeholders)
	if err == nil {
		var all []string
		if all, err = cmdline.Words(o[name]); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("has a %q that %w", name, err)
}

// source returns the Source that the settings lines, json or prometheus describe, whose names begin with prefix. stream
// is the stream to read if no setting names one. source returns nil without an error if none of the three is set.
func source(o map[string]string, prefix string, stream Stream) (*Source, error) {
	var given []string
	for _, kind := range []string{"lines", "json", "prometheus"} {
		if _, ok := o[prefix+kind]; ok {
			given = append(given, prefix+kind)
		}
	}
	switch len(given) {
	case 0:
		if _, ok := o[prefix+"stream"]; ok && prefix != "" {
			return nil, fmt.Errorf("has a %q, and nothing is counted there", prefix+"stream")
		}
		return nil, nil
	case 1:
	default:
		return nil, fmt.Errorf("has %q and %q: one thing is counted in one way", given[0], given[1])
	}
	if _, ok := o[prefix+"stream"]; ok && given[0] == prefix+"prometheus" {
		return nil, fmt.Errorf("has %q and %q: a metric is on no output", prefix+"stream", given[0])
	}
	s := &Source{Stream: Stream(cmp.Or(o[prefix+"stream"], string(stream)))}
	text := o[given[0]]
	var err error
	switch given[0] {
	case "lines":
		s.Lines, err = compile(text)
	case "lost-lines":
		if s.Sum, err = compile(text); err == nil && s.Sum.re.NumSubexp() != 1 {
			err = errors.New(`must have one group that is the number, such as "lost ([0-9]+) events"`)
		}
	case prefix + "json":
		s.JSON, err = parsePath(text)
	case prefix + "prometheus":
		s.Metric, err = parseSelector(text)
	}
	if err != nil {
		return nil, fmt.Errorf("has a %q that %w", given[0], err)
	}
	return s, nil
}

// readyAfter returns the value of the setting ready-after, or the given default if it is not set.
func readyAfter(o map[string]string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(o["ready-after"]); err == nil {
		return d
	}
	return otherwise
}

// mustCompile compiles a pattern of the catalogue. It panics if the pattern is invalid.
func mustCompile(pattern string) *matcher {
	m, err := compile(pattern)
	if err != nil {
		panic(strconv.Quote(pattern) + " " + err.Error())
	}
	return m
}
