// Package screen shows the ledgers of a machine on a terminal as they come: the CPU budget as a bar, and below it the
// tables of what used it. Start reading at Model, which is pure: it makes lines of text of ledgers and keys. Run gives
// it a terminal and a source of ledgers.
//
// What is not known is shown as "-", never as 0. Names are chosen by others, and reach the terminal escaped.
package screen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"tare/internal/scale/ledger"
)

// Source gives one ledger after another. Next returns that of a window which ends in d, or as soon as the context ends.
type Source interface {
	Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error)
}

// Options are how ledgers are shown.
type Options struct {
	Every time.Duration // length of a tick, to begin with
	From  string        // where the ledgers are from; empty: this machine
	// Retry goes on after a source has failed, once it has given a ledger: another machine may be gone for a while.
	Retry bool
}

// Run shows ledgers at a terminal until a person quits, the context ends, or the source fails. It restores the
// terminal, and leaves no goroutine behind: the source can be closed afterwards.
func Run(ctx context.Context, terminal *os.File, s Source, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	m := New(o)
	p := tea.NewProgram(m, tea.WithOutput(terminal), tea.WithoutSignalHandler(), tea.WithFPS(framesPerSecond),
		tea.WithColorProfile(colours(os.Environ())))
	quit := context.AfterFunc(ctx, p.Quit)
	fed := make(chan error, 1)
	go func() {
		err := feed(ctx, s, m.Every, o.Retry, func(msg tea.Msg) { p.Send(msg) })
		fed <- err
		if err != nil {
			p.Quit()
		}
	}()
	_, err := p.Run()
	quit()
	stop()
	return errors.Join(<-fed, err)
}

// framesPerSecond is how often the library looks for something to draw. Its default of 60 takes more CPU time than all
// else that the screen does.
const framesPerSecond = 15

// colours is what the terminal shows by its environment. The library's default also asks tmux, by starting the program
// of that name.
func colours(environment []string) colorprofile.Profile {
	profile := min(colorprofile.Env(environment), colorprofile.ANSI)
	off := func(v string) bool { return len(v) > len(noColor) && strings.HasPrefix(v, noColor) }
	if slices.ContainsFunc(environment, off) {
		profile = min(profile, colorprofile.ASCII) // the library wants a value that means true
	}
	return profile
}

// noColor turns colours off, whatever its value (no-color.org).
const noColor = "NO_COLOR="

// feed sends each ledger of a source, and why there was none, until the context ends. A panic on the way is an error,
// so that the terminal is restored before it is shown.
func feed(
	ctx context.Context, s Source, every func() time.Duration, retry bool, send func(tea.Msg),
) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	for worked := false; ctx.Err() == nil; {
		began := time.Now()
		l, err := s.Next(ctx, every())
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			worked = true
			send(Tick{Ledger: l})
		case !retry || !worked:
			return err
		default:
			send(Tick{Err: err})
			select {
			case <-time.After(every() - time.Since(began)):
			case <-ctx.Done():
			}
		}
	}
	return nil
}
