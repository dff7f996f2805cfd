// Package screen shows one window after another on a terminal: the CPU budget as a bar, and below it tables of what
// used the CPUs. Start reading at Picture, the contents of the screen for one window, such as the ledger of a machine
// (OfLedger), and at Model, which does no I/O: it turns pictures and keys into lines of text. Run connects it to a
// terminal and a source.
//
// An unknown value is shown as "-", never as 0. Names can contain anything, so they are escaped for the terminal.
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
	"github.com/mattn/go-isatty"

	"tare/internal/lib/fault"
)

// Source returns the picture of a window that ends after d, or as soon as the context ends.
type Source func(ctx context.Context, d time.Duration) (*Picture, error)

// Options control how windows are shown.
type Options struct {
	Command string // the name of the program, such as "tare top"
	Weigh   string // the command that prints all of one window, such as "tare weigh"
	Tables  []Table
	Every   time.Duration // initial length of a tick
	From    string        // where the windows are from; empty: this machine
	// Retry continues after a source has failed, if it has worked before: another machine may be unreachable for a while.
	Retry bool
}

// Run shows windows on a terminal until the user quits, the context ends, or the source fails. It restores the
// terminal, and waits for its goroutines, so the source can be closed afterwards.
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

// framesPerSecond is the rate at which the library looks for something to draw. Its default of 60 takes more CPU time
// than the rest of the screen.
const framesPerSecond = 15

// colours returns the colours that the terminal supports according to its environment. The library's default would
// also start tmux to ask it.
func colours(environment []string) colorprofile.Profile {
	profile := min(colorprofile.Env(environment), colorprofile.ANSI)
	off := func(v string) bool { return len(v) > len(noColor) && strings.HasPrefix(v, noColor) }
	if slices.ContainsFunc(environment, off) {
		profile = min(profile, colorprofile.ASCII) // the library ignores NO_COLOR unless its value means true
	}
	return profile
}

// noColor is the beginning of an environment variable that turns colours off, unless its value is empty (no-color.org).
const noColor = "NO_COLOR="

// feed sends a Tick for each picture of a source until the context ends. With retry, it sends one for each failure as
// well, once the source has worked; it returns any other failure. It turns a panic into an error, so that the terminal
// is restored before the panic is shown.
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
		p, err := s(ctx, every())
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			worked = true
			send(Tick{Picture: p})
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

// CheckTerminal returns an error, with a hint, if f is nil, not a terminal, or a terminal that cannot move its cursor.
func CheckTerminal(f *os.File, command, hint string) error {
	if f == nil || !isatty.IsTerminal(f.Fd()) {
		return fault.New(fault.Usage, "standard output", hint, "%s needs a terminal, and this is not one", command)
	}
	if slices.Contains([]string{"", "dumb"}, os.Getenv("TERM")) {
		return fault.New(fault.Usage, "TERM="+os.Getenv("TERM"), hint,
			"%s cannot draw on this kind of terminal", command)
	}
	return nil
}
