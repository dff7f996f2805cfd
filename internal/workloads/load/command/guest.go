// Package command is a load that runs any load generator, such as wrk or fio, by its command line. Tare measures it
// from outside: the CPU time of its group, how long it ran, and how many TCP connections the machine opened in the
// meantime. For generators that package tool knows, the results in their output are recorded too, as measured by the
// generators' own clocks. They are never mixed with the measurements of Tare's own loads, because such a generator does
// not know when the window of a trial opens and closes.
package command

import (
	"context"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// Generator is the name of the generator in the load's results.
const Generator = "command"

func init() { kind.Register(kind.Load, guest{}) }

// guest implements kind.Guest.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name: Generator, Summary: "any load generator, as a command line, measured from outside and by what it prints",
		Settings: Settings, Protocol: kind.AnyProtocol,
		StandsAlone: true, // such as a load that reads a disk
		RunsInside:  func(v param.Values) bool { return v.On(settingIn) },
	}
}

func (guest) Check(v param.Values) error {
	_, err := optionsOf(v)
	return err
}

func (guest) CheckSetup(_ *kind.Setup, _ string, part *kind.Part) error {
	o, err := optionsOf(part.Options)
	if err != nil {
		return err
	}
	return checkAim(o, part.To)
}

// Installed returns an error if the program is not installed. A name with placeholders is not checked until the program
// is started.
func (guest) Installed(_ context.Context, v param.Values) error {
	o, err := optionsOf(v)
	if err != nil || strings.Contains(o.command.Argv[0]+o.command.Dir, "{") {
		return err
	}
	return o.command.Installed()
}

// Optional returns false: without the load, a trial would measure something else.
func (guest) Optional(param.Values) bool { return false }

// Join makes the load's part of a trial.
func (guest) Join(t kind.Trial, name string, part *kind.Part) (any, error) {
	o, err := optionsOf(part.Options)
	if err != nil {
		return nil, err
	}
	return newJoined(t, name, part, o), nil
}
