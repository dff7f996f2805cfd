// Package command is a subject that is any program: an agent, a proxy or a tracer. Tare starts it by its command line
// in a separate control group, or only observes it if it is already running. Tare finds its processes, eBPF programs
// and maps from outside.
//
// If the settings say how to count the events that the program delivers, it is a tracer. Package tracer adds that, and
// registers the subject.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// Name is the subject's kind in specs.
const Name = "command"

const settingObserve = "observe"

// observe is the setting that replaces a command line.
var observe = param.Setting{Name: settingObserve, Type: param.TypeText, Reach: param.ReachProcess,
	Doc: "instead of `command`: a running program, as `pid:1234`, `cgroup:/path`, `unit:NAME` or `container:ID`; it is " +
		"never started, moved or stopped, so it runs beside the baseline too"}

// Version and Optional are the settings of every subject that is an external program.
var (
	Version = param.Setting{Name: "version", Type: param.TypeText, Reach: param.ReachCommand,
		Doc: "command line that prints its version, for the record"}
	Optional = param.Setting{Name: "optional", Type: param.TypeSwitch, Default: "false",
		Doc: "skip the arm where its program is not installed"}
)

// serves is the setting that puts a command into the path of requests.
var serves = param.Setting{Name: "serves", Type: param.TypeText, Reach: param.ReachNothing,
	Doc: "application whose loads go to the command instead, at `address` or `{address}`; when left out, the only one " +
		"with loads, if the command has one of these"}

// Settings are the settings of a command, and of an observed program.
var Settings = slices.Concat(process.Settings[:1], []param.Setting{observe, serves}, process.Settings[1:],
	[]param.Setting{Version, Optional})

// Guest implements kind.Guest, except for counting events.
type Guest struct{}

// About implements kind.Guest.
func (Guest) About() kind.About {
	return kind.About{
		Name: Name, Summary: "any program, as a command line; or one that runs already", Settings: Settings,
		InPath:      InPath,
		Tail:        tail,
		TakesLonger: func(o param.Values) time.Duration { return o.Duration("ready-after") },
	}
}

// Observes reports whether the subject is a program that is already running.
func Observes(o param.Values) bool { return o[settingObserve] != "" }

// Check refuses settings of a command for an observed program, and a subject without a command line.
func (Guest) Check(o param.Values) error {
	if Observes(o) {
		return checkObserved(o)
	}
	if o["command"] == "" {
		return errors.New(`needs a "command", the command line that starts it, or "observe", a running program`)
	}
	_, err := process.OptionsOf(o)
	return err
}

func checkObserved(o param.Values) error {
	if name := o.FirstOf(Settings, settingObserve, Version.Name, Optional.Name); name != "" {
		return ObservedAnd(name)
	}
	if o.On(Optional.Name) { // its arm could not be left out before the run: see Installed
		return fmt.Errorf("has %q and %q: a running program is not looked up until a trial begins", settingObserve,
			Optional.Name)
	}
	_, err := process.ParseTarget(o[settingObserve])
	return err
}

// ObservedAnd returns the error for a setting that needs a command, but was given for an observed program.
func ObservedAnd(setting string) error {
	return fmt.Errorf("has %q and %q: a program that runs already is not started, signalled or counted",
		settingObserve, setting)
}

// CheckSetup checks that limits are set only if they can be applied, and that the applications named in the settings
// exist.
func (Guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	if Observes(part.Options) && len(part.Limits) > 0 {
		return errors.New(`has "limits", and tare does not change the control group of what it observes`)
	}
	for _, text := range part.Options {
		for _, app := range process.Apps(text) {
			if s.Applications[app] == nil {
				return fmt.Errorf("has a placeholder of the application %q, which does not exist", app)
			}
		}
	}
	if !InPath(part.Options) {
		return nil
	}
	_, err := served(s, part.Options)
	return err
}

// InPath reports whether a command with these options is in the path of requests.
func InPath(o param.Values) bool {
	return !Observes(o) && (o[serves.Name] != "" || o["address"] != "" || uses(o, "{address}") || uses(o, "{host}"))
}

// served returns the application to which a command in the path of requests forwards them. The error continues a
// sentence that begins with the part's place in the spec.
func served(s *kind.Setup, o param.Values) (string, error) {
	var to []string // applications to which loads go
	for _, l := range s.Loads {
		if l.To != "" && !slices.Contains(to, l.To) {
			to = append(to, l.To)
		}
	}
	slices.Sort(to)
	name := o[serves.Name]
	switch {
	case len(to) == 0:
		return "", errors.New("stands in the path of requests, by its address, and no load goes to an application")
	case name != "" && !slices.Contains(to, name):
		return "", fmt.Errorf("serves %q, and loads go to %s", name, strings.Join(to, ", "))
	case name == "" && len(to) > 1:
		return "", fmt.Errorf("stands in the path of requests, by its address: say to which application, with %q: loads go "+
			"to %s", serves.Name, strings.Join(to, ", "))
	}
	return cmp.Or(name, to[0]), nil
}

// Installed returns an error if the program is not installed. An observed program is not looked up until a trial
// begins.
func (Guest) Installed(_ context.Context, o param.Values) error {
	if Observes(o) {
		return nil
	}
	c, err := process.OptionsOf(o)
	if err != nil || strings.Contains(c.Argv[0], "{") {
		return err // the program of {self} always exists
	}
	return c.Installed()
}

// Optional reports whether a run goes on without the arm if the program is not installed.
func (Guest) Optional(o param.Values) bool { return o.On(Optional.Name) }

// Version returns the name of the program, and its version.
func (Guest) Version(ctx context.Context, o param.Values, _ string) (name, version string) {
	if Observes(o) {
		return o[settingObserve], process.VersionOf(ctx, o[Version.Name])
	}
	c, err := process.OptionsOf(o)
	if err != nil {
		return Name, "" // Check has reported the error
	}
	name = filepath.Base(c.Argv[0])
	return name, strings.TrimPrefix(process.VersionOf(ctx, o[Version.Name]), name+" ")
}

// tail returns the time that a command gets to end. A command whose events are not counted is stopped after the window
// has closed and everything has been read.
func tail(o param.Values) time.Duration {
	if Observes(o) {
		return 0
	}
	c, err := process.OptionsOf(o)
	if err != nil {
		return 0
	}
	return c.StopTime
}

// FindsProcesses implements Finder.
func (Guest) FindsProcesses() {}

// Speaks implements measured.Speaker. An answer about a command mentions the CPU time that the command itself uses.
func (Guest) Speaks(*kind.Setup) []string {
	return []string{"subject_cpus", "subject_bpf_cpus"}
}

// Join makes the subject's part of a trial.
func (Guest) Join(t kind.Trial, _ string, part *kind.Part) (any, error) {
	if target := part.Options[settingObserve]; target != "" {
		return newObserved(t, target)
	}
	c, err := process.OptionsOf(part.Options)
	if err != nil {
		return nil, err
	}
	s := &started{trial: t, part: part, command: c}
	if InPath(part.Options) {
		if s.serves, err = served(t.Setup(), part.Options); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// target parses the setting "observe".
func target(text string) (process.Target, error) {
	t, err := process.ParseTarget(text)
	if err != nil {
		return t, fault.Wrap(err, fault.Usage, settingObserve, observe.Hint(), "cannot be observed")
	}
	return t, nil
}
