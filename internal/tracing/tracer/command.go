package tracer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
	"tare/internal/workloads/subject/command"
)

// anyCommand is a subject that is any program. It is a tracer if a setting says how to count its events.
type anyCommand struct {
	command.Guest           // for a command whose events are not counted
	counted       asSubject // for one whose events are counted
}

var commandLine = anyCommand{counted: asSubject{Lookup(command.Name)}}

func init() { kind.Register(kind.Subject, commandLine) }

// About adds the settings of tracers to those of a command.
func (g anyCommand) About() kind.About {
	a := g.Guest.About()
	a.Settings = slices.Clone(a.Settings)
	for _, s := range g.counted.About().Settings {
		if _, taken := param.Find(a.Settings, s.Name); !taken {
			a.Settings = append(a.Settings, s)
		}
	}
	a.Tail, a.TakesLonger = g.tail, g.takesLonger
	return a
}

// counts reports whether the events of the command are counted.
func counts(o param.Values) bool {
	return slices.ContainsFunc([]string{"lines", "json", "prometheus"}, func(way string) bool {
		_, given := o[way]
		return given
	})
}

// Check refuses contradictory settings: those of a counted command together with those of a command that is only
// started, and either together with those of an observed program.
func (g anyCommand) Check(o param.Values) error {
	tracers := o.FirstOf(g.counted.About().Settings, "command", "ready-after", command.Version.Name, command.Optional.Name)
	switch {
	case command.Observes(o):
		if err := g.Guest.Check(o); err != nil || tracers == "" {
			return err
		}
		return command.ObservedAnd(tracers)
	case counts(o):
		if name := o.FirstOf(command.Settings, "command", "ready-after", command.Version.Name,
			command.Optional.Name); name != "" {
			return fmt.Errorf(`has %q, and its events are counted: such a command has "ready", "signal" and "stop" `+
				"instead", name)
		}
		return g.counted.Check(o)
	case tracers != "":
		return fmt.Errorf(`has %q, which is of a command whose events are counted: give one of "lines", "json" and `+
			`"prometheus" as well, or leave it out`, tracers)
	}
	return g.Guest.Check(o)
}

// CheckSetup checks that a counted command has events to count. For other commands it checks the same as command.Guest.
func (g anyCommand) CheckSetup(s *kind.Setup, path string, part *kind.Part) error {
	if counts(part.Options) {
		return g.counted.CheckSetup(s, path, part)
	}
	return g.Guest.CheckSetup(s, path, part)
}

// Installed returns an error if the program is not installed.
func (g anyCommand) Installed(ctx context.Context, o param.Values) error {
	if counts(o) {
		return g.counted.Installed(ctx, o)
	}
	return g.Guest.Installed(ctx, o)
}

// Version returns the program's name and version.
func (g anyCommand) Version(ctx context.Context, o param.Values, own string) (name, version string) {
	if counts(o) {
		return g.counted.Version(ctx, o, own)
	}
	return g.Guest.Version(ctx, o, own)
}

// tail returns the time that the program gets to end. If its events are counted, that includes the drain.
func (g anyCommand) tail(o param.Values) time.Duration {
	if counts(o) {
		return g.counted.tail(o)
	}
	return g.Guest.About().Tail(o)
}

// takesLonger returns the time that the settings give the program to get ready, plus settling if its events are
// counted.
func (g anyCommand) takesLonger(o param.Values) time.Duration {
	takes := g.Guest.About().TakesLonger(o)
	if counts(o) {
		takes += settling
	}
	return takes
}

// Join implements kind.Joiner.
func (g anyCommand) Join(t kind.Trial, name string, part *kind.Part) (any, error) {
	if counts(part.Options) {
		return g.counted.Join(t, name, part)
	}
	return g.Guest.Join(t, name, part)
}
