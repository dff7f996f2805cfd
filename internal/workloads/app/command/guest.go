// Package command is an application that is any program: either a server that a spec starts by its command line, or one
// that is already running and is only observed. Loads use its address. Its protocol is unknown.
package command

import (
	"context"
	"errors"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/process"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Application, guest{}) }

// guest implements kind.Guest.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name: "command", Summary: "any server: a command line, or a running program", Settings: Settings,
		Protocol: kind.AnyProtocol,
	}
}

func (guest) Check(v param.Values) error { return check(v) }

// CheckSetup refuses limits for an observed program, because the trial does not start it.
func (guest) CheckSetup(_ *kind.Setup, _ string, part *kind.Part) error {
	if _, observes := part.Options[observe]; observes && len(part.Limits) > 0 {
		return errors.New("an observed application cannot be limited: leave out its limits, or have a command start it")
	}
	return nil
}

// Installed returns an error if the program is not installed. A name with placeholders is not checked until the program
// is started.
func (guest) Installed(_ context.Context, v param.Values) error {
	if _, observes := v[observe]; observes {
		return nil
	}
	c, err := process.OptionsOf(v)
	if err != nil || strings.Contains(c.Argv[0]+c.Dir, "{") {
		return err
	}
	return c.Installed()
}

// Optional returns false: without the application there is nothing to compare.
func (guest) Optional(param.Values) bool { return false }

// Join makes the application's part of a trial.
func (guest) Join(t kind.Trial, name string, part *kind.Part) (any, error) {
	if target, observes := part.Options[observe]; observes {
		return newObserved(t, name, target, part.Options["address"])
	}
	return newStarted(t, name, part)
}
