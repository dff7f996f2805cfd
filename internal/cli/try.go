package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/process"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	subject "tare/internal/workloads/subject/command"
)

func init() { register(newTry) }

// tryFlags holds the flags of tare try, which include those of a run.
type tryFlags struct {
	run         runFlags
	load        string
	app         string
	loadCommand string
	against     string       // command line of the baseline; if empty, no command runs in the baseline
	command     param.Values // settings of the command
}

func newTry() *cobra.Command {
	var f tryFlags
	c := &cobra.Command{
		Use:   "try [flags] -- COMMAND [ARGS]",
		Short: "Weigh any command: what it uses, and how much it slows workloads that run beside it",
		Long: `Weigh any command: an agent, a proxy, a tracer. It runs next to reference workloads, each with a baseline and
an A/A twin without it, in randomised blocks, and the answer says with intervals what it uses (CPU, memory, eBPF
time and maps) and what each workload loses.

The workloads: keepalive, HTTP requests on connections that stay; connections, one connection for each request; execs,
processes that start and end; writes, to files. All are at fixed, moderate rates. --load keeps one of them, or takes a
load of another kind.

The command is started once by itself first, to see that it runs and how long its start-up takes, and then for each
trial anew, in a separate control group. It must stay in the foreground and work without a terminal. If it has other
programs start processes, as docker run and systemd-run do, its figures do not include these: observe them instead.

In the arguments of the command, {cgroup_dir}, {cgroup_id} and {cgroup_path} stand for the control group of the
workload, {dir} for a separate directory, and {port} for a free port. A command with {address} in its arguments
receives the requests at that address, in place of the application, which is at {server.address}.

With --against another command, such as the previous version, is the baseline. Both run as arms of one run, in random
order within each block, so the differences are those of the versions, and not of the machine on two days. Settings of
the command (--ready-port, --env and so on) apply to both.

It is an experiment like others: its directory keeps every trial, and the spec in its run.json runs again with
'tare run'.`,
		Example: `  tare try -- bpftrace -e 'tracepoint:syscalls:sys_enter_openat { @[comm] = count(); }'
  tare try -- haproxy -f x.cfg
  tare try --load execs --blocks 12 -- bpftrace -e 'tracepoint:sched:sched_process_exec { @ = count(); }'
  tare try --ready-port {port} -- prometheus-node-exporter --web.listen-address=127.0.0.1:{port}
  tare try --against './agent-1.2 --config a.yaml' --assert 'subject_cpus <= +5%' -- ./agent-1.3 --config a.yaml
  tare try --json -- sleep infinity`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch at := cmd.ArgsLenAtDash(); {
			case len(args) == 0:
				return fault.New(fault.Usage, cmd.CommandPath(), "write it after two dashes: tare try -- sleep infinity",
					"there is no command to try")
			case at != 0:
				return fault.New(fault.Usage, cmd.CommandPath()+" "+args[0],
					"write two dashes before the command: tare try [flags] -- "+process.Command{Argv: args}.Line(),
					"the command must follow two dashes, so that its flags are not taken for those of tare")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.run.Check(cmd.Flags()); err != nil {
				return err
			}
			return try(cmd.Context(), f, args, cmd.OutOrStdout())
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.load, "load", "", "one workload ("+strings.Join(workloadNames(), ", ")+") or a load of another kind")
	fs.StringVar(&f.app, "app", "", "kind of the application that HTTP loads go to, or that runs beside; default http")
	fs.StringVar(&f.loadCommand, "load-command", "", "command line of a load of your own, instead of the workloads")
	fs.StringVar(&f.against, "against", "",
		"command line to use as the baseline, such as that of the previous version")
	f.run.Register(fs)
	f.run.registerPprof(fs)
	fs.StringArrayVar(&f.run.Overrides.Set, "set", nil,
		"setting=value of a workload, such as connections.rate=500; may be repeated")
	f.command = param.Flags(fs, commandFlags()...)
	return c
}

// commandFlags returns the settings of a command that are flags: all but the command line.
func commandFlags() []param.Setting {
	return slices.DeleteFunc(slices.Clone(process.Settings), func(s param.Setting) bool { return s.Name == "command" })
}

// workload is a load next to which a command is tried.
type workload struct {
	name string
	load string // the kind
	text string // its settings, as in a spec
}

// workloads are the reference workloads, at rates that leave a machine of two CPUs half idle.
var workloads = []workload{
	{"keepalive", "http", "rate: 2000, arrivals: poisson, connections: 16, keepalive: true, limits: {pin: 2}"},
	{"connections", "http", "rate: 1000, arrivals: poisson, connections: 64, keepalive: false, limits: {pin: 2}"},
	{"execs", "exec", "rate: 200, workers: 1, limits: {pin: 2}"},
	{"writes", "write", "rate: 500, workers: 1, size: 16KiB, sync: none, limits: {pin: 2}"},
}

func workloadNames() []string {
	return lists.Map(workloads, func(w workload) string { return w.name })
}

// try runs the experiment that tries a command.
func try(ctx context.Context, f tryFlags, argv []string, out io.Writer) error {
	if err := f.setCommands(argv); err != nil {
		return err
	}
	chosen, err := f.workloads()
	if err != nil {
		return err
	}
	name := armName(argv[0])
	s, err := trySpec(name, f, chosen) // finds errors before anything is started
	if err != nil {
		return err
	}
	if err := requireFeatures(s); err != nil {
		return err
	}
	if err := f.rehearse(ctx, name); err != nil {
		return err
	}
	if s, err = trySpec(name, f, chosen); err != nil {
		return err
	}
	return run(ctx, s, f.run, out)
}

// setCommands sets the command lines of the command and of the baseline, as a spec has them.
func (f *tryFlags) setCommands(argv []string) error {
	dir := f.command["dir"]
	f.command["command"] = lineOf(argv, dir)
	if f.against == "" {
		return nil
	}
	c, err := process.OptionsOf(f.baseline())
	if err != nil {
		return fault.Wrap(err, fault.Usage, "--against", fault.HintOf(err), "this cannot be the baseline")
	}
	f.against = lineOf(c.Argv, dir)
	return nil
}

// rehearse runs the command once by itself, and the baseline too if there is one. Unless the user has set the time
// after which they count as ready, it sets that time to the longer of their start-up times.
func (f *tryFlags) rehearse(ctx context.Context, name string) (err error) {
	layout, own, err := ground(ctx, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	found, err := rehearseOne(ctx, layout, own.path, f.command)
	if err != nil {
		return err
	}
	f.rehearsed(name, found)
	ready := found.ReadyAfter
	if f.against != "" {
		found, err := rehearseOne(ctx, layout, own.path, f.baseline())
		if err != nil && ctx.Err() == nil {
			return fault.Wrap(err, fault.CodeOf(err), "--against", fault.HintOf(err), "the baseline cannot run")
		}
		if err != nil {
			return err
		}
		f.rehearsed("the baseline", found)
		ready = max(ready, found.ReadyAfter)
	}
	if ready > 0 {
		f.command["ready-after"] = ready.String()
	}
	return nil
}

// rehearseOne runs one command once by itself.
func rehearseOne(
	ctx context.Context, layout *cgroup.Layout, self string, settings param.Values,
) (found subject.Rehearsal, err error) {
	tree, err := placement.NewTree(layout, "rehearsal")
	if err != nil {
		return found, err
	}
	group := func(name string) (kind.Group, error) { return tree.Group(name, placement.Limits{}) }
	found, err = subject.Rehearse(ctx, group, layout, self, settings)
	if err = errors.Join(err, tree.Close()); ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return found, err
}

// rehearsed prints the start-up time that a rehearsal measured, unless the user gave it. If CPU time never settled, it
// also adds a warning to the run, because the windows of trials may include the start-up.
func (f *tryFlags) rehearsed(name string, found subject.Rehearsal) {
	switch {
	case found.ReadyAfter == 0: // the user said when the command is ready
	case found.Settled:
		fmt.Fprintf(stderr, "%s: started once by itself, its start-up was over after %.1f s\n", name,
			found.ReadyAfter.Seconds())
	default:
		warning := name + ": started once by itself, its CPU time never settled, so windows may include its start-up; " +
			"give the time that this takes with --ready-after"
		f.run.warnings = append(f.run.warnings, warning)
		fmt.Fprintln(stderr, warning)
	}
}

// baseline returns the settings for the command of --against: those of the tried command, except the command line.
func (f tryFlags) baseline() param.Values {
	of := f.command.Clone()
	of["command"] = f.against
	return of
}

// lineOf returns the command line for a spec. It makes the path of the program absolute, unless the command runs in
// another directory, so that the spec can be run from elsewhere.
func lineOf(argv []string, dir string) string {
	argv = slices.Clone(argv)
	if program := argv[0]; strings.Contains(program, "/") && dir == "" {
		if whole, err := filepath.Abs(program); err == nil {
			argv[0] = whole
		}
	}
	return process.Command{Argv: argv}.Line()
}

// longestArm is the maximum length of a name that armName returns, in bytes.
const longestArm = 32

// armName turns the name of a program into a valid name of an arm.
func armName(program string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, filepath.Base(program))
	name = strings.Trim(name, "-")
	if name == "" || name[0] < 'a' || name == "direct" || name == "aa" {
		name = strings.TrimSuffix("command-"+name, "-")
	}
	return strings.TrimRight(name[:min(len(name), longestArm)], "-")
}

// workloads returns the workloads that the user asked for.
func (f tryFlags) workloads() ([]workload, error) {
	if f.loadCommand != "" {
		if f.load != "" {
			return nil, fault.New(fault.Usage, "--load-command", "omit one of them", "cannot be combined with --load")
		}
		if kind.Find(kind.Load, "command") == nil {
			return nil, fault.New(fault.Usage, "--load-command", "'tare list loads' has those there are",
				"there are no loads that are commands")
		}
		return []workload{{"load", "command", "command: " + yamlText(f.loadCommand)}}, nil
	}
	app := kind.Find(kind.Application, cmp.Or(f.app, "http"))
	if app == nil {
		names := kind.Names(kind.Application)
		return nil, fault.New(fault.Usage, "--app", "the kinds are "+strings.Join(names, ", "),
			"there is no application %q%s", text.Clip(f.app), text.DidYouMean(f.app, names))
	}
	all := workloads
	if f.load != "" {
		one, err := f.workload()
		if err != nil {
			return nil, err
		}
		all = []workload{one}
	}
	var chosen []workload
	// A command in the path of the requests is tried only with loads that connect to the application.
	inPath := subject.InPath(f.command)
	for _, w := range all {
		k := kind.Find(kind.Load, w.load)
		if k != nil && (k.About().Protocol == "" && !inPath || k.About().Protocol == app.About().Protocol) {
			chosen = append(chosen, w)
		}
	}
	if len(chosen) == 0 {
		return nil, fault.New(fault.Usage, "--load", "'tare list loads' and 'tare list apps' say what goes to what",
			"the load %s does not go to an application of kind %s", text.Clip(f.load), app.About().Name)
	}
	return chosen, nil
}

// workload returns the workload that --load names: a reference workload, or a kind of load with its defaults.
func (f tryFlags) workload() (workload, error) {
	for _, w := range workloads {
		if w.name == f.load {
			return w, nil
		}
	}
	if kind.Find(kind.Load, f.load) != nil {
		return workload{name: f.load, load: f.load}, nil
	}
	names := slices.Concat(workloadNames(), kind.Names(kind.Load))
	return workload{}, fault.New(fault.Usage, "--load", "there are "+strings.Join(names, ", "),
		"there is no workload %q%s", text.Clip(f.load), text.DidYouMean(f.load, names))
}

// The size of an experiment that tries a command.
const (
	tryBlocks = 8
	tryLeast  = 6                 // the fewest blocks that give intervals
	tryTime   = 150 * time.Second // the longest planned duration
)

// tryWindow is the length of the windows, which is the most common timer period of idle programs. All windows begin at
// about the same age of the command, so a window of 0.8 s would contain that timer's work either always or never.
const tryWindow = time.Second

// trySpec returns the experiment. It reduces the number of blocks until the run fits into tryTime, but not below
// tryLeast. The user's flags, such as --blocks, override the result.
func trySpec(name string, f tryFlags, chosen []workload) (*spec.Spec, error) {
	s, err := spec.Parse("try", []byte(tryText(name, f, chosen)), featureNames())
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", fault.HintOf(err), "this cannot be tried")
	}
	for s.Blocks > tryLeast && engine.Estimate(s) > tryTime {
		s.Blocks--
	}
	return s, s.Apply(f.run.Overrides)
}

// tryText returns the text of the spec.
func tryText(name string, f tryFlags, chosen []workload) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("name: %q", "try-"+name)
	question := "What does " + name + " use, and what do workloads beside it lose?"
	if f.against != "" {
		question = "What does " + name + " use, and what do workloads beside it lose, compared with the baseline command?"
	}
	line("question: %q", question)
	line("needs: [bpf-syscall, bpf-stats, sampling]")
	line("blocks: %d\nwarmup: 300ms\nduration: %s\nrepeat: 20%%", tryBlocks, tryWindow)
	line("applications:\n  server: {kind: %s, limits: {pin: 1}}", cmp.Or(f.app, "http"))
	line("loads:")
	for _, w := range chosen {
		text := "kind: " + w.load
		if goes(w) {
			text += ", to: server"
		}
		if w.text != "" {
			text += ", " + w.text
		}
		line("  %s: {%s}", w.name, text)
	}
	arm := func(indent string, settings param.Values) {
		line("%ssubject: %s", indent, subject.Name)
		for _, s := range process.Settings {
			if v := settings[s.Name]; v != "" && v != s.Default {
				line("%s%s: %s", indent, s.Name, yamlText(v))
			}
		}
	}
	if f.against != "" {
		line("baseline:")
		arm("  ", f.baseline())
	}
	line("arms:\n  %q:", name)
	arm("    ", f.command)
	if len(chosen) == 1 {
		return b.String()
	}
	line("factors:\n  workload:")
	for _, w := range chosen {
		sets := []string{}
		for _, other := range chosen {
			count := 0
			if other.name == w.name {
				count = 1
			}
			sets = append(sets, fmt.Sprintf("loads.%s.count: %d", other.name, count))
		}
		served := 1
		if f.app == "" && !goes(w) {
			served = 0 // no load connects to the application
		}
		line("    %s: {%s, applications.server.count: %d}", w.name, strings.Join(sets, ", "), served)
	}
	return b.String()
}

// goes reports whether a workload connects to an application.
func goes(w workload) bool { return kind.Find(kind.Load, w.load).About().Protocol != "" }

// yamlText returns a text as a double-quoted YAML string, in the form of JSON, which YAML contains.
func yamlText(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		return `""` // cannot happen with a string
	}
	return string(b)
}
