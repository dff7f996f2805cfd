package command

import (
	"tare/internal/command"
	"tare/internal/kind"
	"tare/internal/measured"
)

// This file is for loads that are one certain program: they have settings of its own, make a command line of them, and
// are measured as any program is.

// Joined is the load in a trial: a kind.Generator, to be closed in the end.
type Joined = joined

// JoinProgram makes the part in a trial of a load whose part has the options of this kind.
func JoinProgram(t kind.Trial, name string, part *kind.Part) (*Joined, error) {
	o, err := optionsOf(part.Options)
	if err != nil {
		return nil, err
	}
	return newJoined(t, name, part, o), nil
}

// Judge judges it as a load of this kind.
func Judge(m *measured.Measured, name string) []measured.Trip { return guest{}.Judge(m, name) }

// Installed says whether a program is there. Its error is that of command.Command.
func Installed(program string) error { return command.Command{Argv: []string{program}}.Installed() }
