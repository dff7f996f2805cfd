package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/process"
	"tare/internal/lib/pace"
)

// This file is for loads that run one particular program. Such a load has its own settings, makes a command line from
// them, and is measured like any other program.

// Joined is a load's part of a trial: a kind.Generator. The caller must close it.
type Joined = joined

// JoinProgram makes the part of a trial for a load with the options of kind command.
func JoinProgram(t kind.Trial, name string, part *kind.Part) (*Joined, error) {
	o, err := optionsOf(part.Options)
	if err != nil {
		return nil, err
	}
	return newJoined(t, name, part, o), nil
}

// JoinEarly does the same as JoinProgram, for a program that must be running when the schedule begins, because its
// environment may take seconds to start.
func JoinEarly(t kind.Trial, name string, part *kind.Part) (*Joined, error) {
	j, err := JoinProgram(t, name, part)
	if err == nil {
		j.early = true
	}
	return j, err
}

// waiting is a shell command that creates a file when it runs, waits for another file, and then executes the program.
const waiting = `: >"$0"; while [ ! -e "$1" ]; do sleep 0.01; done; shift; exec "$@"`

// upTime is the maximum time for starting a program. In a virtual machine on an emulated processor, this takes seconds.
const upTime = time.Minute

// await starts a shell that waits for the begin file before it executes the program, and returns once the shell runs.
func (j *joined) await(ctx context.Context, dir string) error {
	program, err := child.Find(j.command.Argv[0])
	if err != nil {
		return err // Installed has already reported this
	}
	up := filepath.Join(dir, "up")
	j.begin = filepath.Join(dir, "begin")
	j.command.Argv = slices.Concat([]string{"/bin/sh", "-c", waiting, up, j.begin, program}, j.command.Argv[1:])
	if j.running, err = j.Start(ctx, j.command, j.onEnd); err != nil {
		return err
	}
	for deadline := time.Now().Add(upTime); ; {
		if _, err := os.Stat(up); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s was not there within %v", program, upTime)
		}
		if err := pace.Sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// letBegin creates the begin file. A program in a sandbox can write to the directory too, so letBegin does not open a
// link or a FIFO that is already there.
func (j *joined) letBegin() error {
	f, err := os.OpenFile(j.begin, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("letting the program begin: %w", err)
	}
	return f.Close()
}

// Judge judges a load as one of kind command.
func Judge(m *measured.Measured, name string) []measured.Trip { return guest{}.Judge(m, name) }

// Installed returns the error of process.Command.Installed for a program without arguments.
func Installed(program string) error { return process.Command{Argv: []string{program}}.Installed() }
