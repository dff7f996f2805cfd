// Package command is the subject that is any program: an agent, a proxy, a tracer, started by its command line in a
// control group of its own, or one that runs already and is only observed. What belongs to it, its processes and its
// eBPF programs and maps, is found from outside.
//
// Where its settings say how the events that it delivers are counted, it is a tracer, and package tracer runs it.
package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/tracing/tracer"
)

// Name is what specs call the subject.
const Name = tracer.CommandName

// The settings that only this subject has, and those of tracers that it takes without counting anything.
const (
	settingCommand = "command"
	settingObserve = "observe"
	settingVersion = "version"
)

// observe is the setting that takes the place of a command line.
var observe = param.Setting{Name: settingObserve, Type: param.TypeText, Reach: param.ReachProcess,
	Doc: "instead of `command`, what runs already: `pid:1234`, `cgroup:/path`, `unit:NAME` or `container:ID`. It is " +
		"only watched, in this arm: never started, moved or stopped, so it runs beside the baseline as well, and only " +
		"what it uses itself can be told"}

// counted is the same subject where its events are counted.
var counted = tracer.CommandLine()

// Settings are those of a command, then those by which a tracer is counted.
var Settings = settings()

func settings() []param.Setting {
	all := slices.Concat(process.Settings[:1], []param.Setting{observe}, process.Settings[1:])
	for _, s := range counted.About().Settings {
		if _, taken := param.Find(all, s.Name); !taken {
			all = append(all, s)
		}
	}
	return all
}

// guest is the subject as the engine knows it.
type guest struct{}

func init() { kind.Register(kind.Subject, guest{}) }

func (guest) About() kind.About {
	return kind.About{
		Name: Name, Summary: "any program, as a command line; or one that runs already", Settings: Settings,
	}
}

// ways are the settings that say how events are counted: with one of them the subject is a tracer.
var ways = []string{"lines", "json", "prometheus"}

// counts reports whether the events of the command are counted.
func counts(o param.Values) bool {
	return slices.ContainsFunc(ways, func(name string) bool { _, given := o[name]; return given })
}

// Check refuses what does not go together: settings of a command whose events are counted with those of one that is
// only started, and either with one that runs already.
func (guest) Check(o param.Values) error {
	switch {
	case o[settingObserve] != "":
		return checkObserved(o)
	case counts(o):
		if name := firstGiven(o, process.Settings, settingCommand, "ready-after"); name != "" {
			return fmt.Errorf(`has %q, and its events are counted: such a command has "ready", "signal" and "stop" `+
				"instead", name)
		}
		return counted.Check(o)
	}
	name := firstGiven(o, counted.About().Settings, settingCommand, settingVersion, "ready-after", "optional")
	if name != "" {
		return fmt.Errorf(`has %q, which is of a command whose events are counted: give one of "lines", "json" and `+
			`"prometheus" as well, or leave it out`, name)
	}
	if o[settingCommand] == "" {
		return errors.New(`needs a "command", the command line that starts it, or "observe", what runs already`)
	}
	_, err := process.OptionsOf(o)
	return err
}

// firstGiven is the first of some settings that has another value than its default, save for those that are allowed.
func firstGiven(o param.Values, settings []param.Setting, allowed ...string) string {
	for _, s := range settings {
		if v, given := o[s.Name]; given && v != s.Default && !slices.Contains(allowed, s.Name) {
			return s.Name
		}
	}
	return ""
}

func checkObserved(o param.Values) error {
	if name := firstGiven(o, Settings, settingObserve, settingVersion, "optional"); name != "" {
		return fmt.Errorf("has %q and %q: what runs already is not started, told or counted", settingObserve, name)
	}
	_, err := process.ParseTarget(o[settingObserve])
	return err
}

// CheckSetup sees that what is counted has events, and that no limits are asked for where none can be set.
func (guest) CheckSetup(s *kind.Setup, path string, part *kind.Part) error {
	if counts(part.Options) {
		return counted.CheckSetup(s, path, part)
	}
	if part.Options[settingObserve] != "" && len(part.Limits) > 0 {
		return errors.New(`has "limits", and what is observed runs in a control group that is not tare's to change`)
	}
	return nil
}

// Installed says whether the program is there. What is to be observed is looked for when a trial begins.
func (guest) Installed(ctx context.Context, o param.Values) error {
	switch {
	case o[settingObserve] != "":
		return nil
	case counts(o):
		return counted.Installed(ctx, o)
	}
	c, err := process.OptionsOf(o)
	if err != nil || strings.Contains(c.Argv[0], "{") {
		return err // {self} is there
	}
	return c.Installed()
}

func (guest) Optional(o param.Values) bool { return counted.Optional(o) }

// Version is by the name of the program.
func (guest) Version(ctx context.Context, o param.Values, own string) (name, version string) {
	if o[settingObserve] != "" {
		return o[settingObserve], ""
	}
	if counts(o) {
		return counted.Version(ctx, o, own)
	}
	c, err := process.OptionsOf(o)
	if err != nil {
		return Name, "" // Check has said why
	}
	name = filepath.Base(c.Argv[0])
	return name, strings.TrimPrefix(tracer.VersionOf(ctx, o[settingVersion]), name+" ")
}

// Tail is the time that it gets to end. What is only started is told to when the window is closed and all is read.
func (guest) Tail(o param.Values) time.Duration {
	switch {
	case o[settingObserve] != "":
		return 0
	case counts(o):
		return counted.Tail(o)
	}
	c, err := process.OptionsOf(o)
	if err != nil {
		return 0
	}
	return c.StopTime
}

// TakesLonger is the time that its settings give it to be ready, and that of a tracer where its events are counted.
func (guest) TakesLonger(o param.Values) time.Duration {
	takes := o.Duration("ready-after")
	if counts(o) {
		takes += tracer.Settling
	}
	return takes
}

// FindsProcesses makes the subject one of those whose processes' memory is told (tracer.Finder).
func (guest) FindsProcesses() {}

// Metrics are those that tracers have too.
func (guest) Metrics() []measured.Metric { return tracer.Metrics() }

// Speaks: what a command itself uses is what it is weighed for.
func (guest) Speaks(*kind.Setup) []string {
	return []string{"subject_cpus", "subject_bpf_cpus"}
}

func (guest) Join(t kind.Trial, name string, part *kind.Part) (any, error) {
	if target := part.Options[settingObserve]; target != "" {
		return newObserved(t, target)
	}
	if counts(part.Options) {
		return counted.Join(t, name, part)
	}
	c, err := process.OptionsOf(part.Options)
	if err != nil {
		return nil, err
	}
	return &started{trial: t, part: part, command: c}, nil
}

// target reads what a spec wants observed.
func target(text string) (process.Target, error) {
	t, err := process.ParseTarget(text)
	if err != nil {
		return t, fault.Wrap(err, fault.Usage, settingObserve, observe.Hint(), "cannot be observed")
	}
	return t, nil
}
