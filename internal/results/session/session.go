// Package session runs an experiment from end to end and tells people about it, for whichever command starts it: the
// flags and the record of a run (Flags), its progress, its summary and report (Run), and the error that it ends with.
package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
)

// Output is where a run reports its progress and results.
type Output struct {
	Out      io.Writer // the report, or one JSON document
	Log      io.Writer // progress and warnings, for people
	Terminal *os.File  // what Log writes to: where it is a terminal, one line of progress changes
	Show     Show
	Text     func(w io.Writer, dir string, all bool) report.Options // of a report on w
	Warnings []string                                               // about the run as a whole
}

// Run runs the trials of r and records them with w. It sets r.Writer, r.Progress and r.Enough, prints the results, and
// returns all errors as one.
func Run(ctx context.Context, r *engine.Runner, w *record.Writer, o Output) error {
	trials, err := Measure(ctx, r, w, o)
	return o.Conclude(w, *r.Record, trials, err)
}

// Measure is the first part of Run: the trials, without a summary. Nothing is printed but progress.
func Measure(ctx context.Context, r *engine.Runner, w engine.Recorder, o Output) ([]record.Trial, error) {
	p := o.progress(r.Spec, *r.Record, r.Estimate(), w.Dir())
	defer context.AfterFunc(ctx, p.interrupted)()
	for _, text := range o.Warnings {
		p.warn(text)
	}
	r.Writer, r.Progress = w, p.say
	r.Enough = func(trials []record.Trial) (bool, string) {
		enough, why, err := enough(*r.Record, trials)
		if err != nil {
			return false, err.Error()
		}
		return enough, why
	}
	trials, err := r.Run(ctx)
	p.done()
	return trials, err
}

// enough reports whether a run without a number of blocks may end, and why, or what is missing.
func enough(r record.Run, trials []record.Trial) (bool, string, error) {
	var reached []string
	if r.Precision != nil {
		precise, why, err := analysis.Enough(r, trials)
		if err != nil || !precise {
			return false, why, err
		}
		reached = append(reached, "precise")
	}
	if len(r.Assert) > 0 {
		decided, why, err := analysis.Decided(r, trials)
		if err != nil || !decided {
			return false, why, err
		}
		reached = append(reached, "decided")
	}
	return len(reached) > 0, strings.Join(reached, " and "), nil
}

// Conclude is the second part of Run, for trials that ended with runErr: it writes the summary, prints it or the
// report, and turns what went wrong into one error.
func (o *Output) Conclude(w *record.Writer, r record.Run, trials []record.Trial, runErr error) error {
	out := o.Out
	if len(trials) == 0 {
		return ended(r, trials, w.Dir(), runErr)
	}
	summary, err := analysis.Summarize(r, trials)
	if err != nil {
		return errors.Join(runErr, fmt.Errorf("summarizing %s: %w", w.Dir(), err))
	}
	if n := w.Trimmed(); n > 0 {
		summary.Warnings = append(summary.Warnings,
			fmt.Sprintf("%s too large for the record, which is without some details of them: "+
				"the warnings of their ledgers say which", several(n, "trial was", "trials were")))
	}
	written := errors.Join(w.WriteSummary(summary), writePage(w, summary, r, trials))
	profiled, err := writeProfiles(w, summary, r, trials)
	written = errors.Join(written, err)
	show := func() error { return report.Text(out, summary, r, o.Text(out, w.Dir(), o.Show.All)) }
	if o.Show.JSON() {
		show = func() error { return report.JSON(out, summary) }
	}
	if err := show(); err != nil {
		written = errors.Join(written, fmt.Errorf("printing the report: %w", err))
	}
	if written == nil && !o.Show.JSON() {
		fmt.Fprintf(out, "report:    %s\n", filepath.Join(w.Dir(), record.ReportFile))
		if profiled {
			fmt.Fprintf(out, "stacks:    %s\n", filepath.Join(w.Dir(), record.ProfileDir, record.StacksFile))
		}
	}
	if summary.Valid && runErr == nil {
		written = errors.Join(written, produce(out, w, r, trials, o.Show.JSON()))
	}
	switch {
	case runErr != nil:
		return errors.Join(ended(r, trials, w.Dir(), runErr), written)
	case written != nil:
		return written
	}
	return Concluded(w.Dir(), summary)
}

// Concluded is the error of a run that is invalid, or whose assertions do not all hold. That one fails is a result, of
// whatever else the run cannot tell.
func Concluded(dir string, s *analysis.Summary) error {
	if !s.Valid && s.Result() != analysis.Fails {
		return fault.New(fault.Invalid, dir, "change that and run it again; 'tare report' shows this run again",
			"the run is invalid: %s", strings.Join(s.InvalidReasons, "; "))
	}
	if s.Partial && s.Result() == analysis.Holds {
		return fault.New(fault.Invalid, dir, "run it again to its end", "the run is partial: %d of %d trials were done",
			s.Trials.Done, s.Trials.Planned)
	}
	return judged(dir, s)
}

// judged is the error of a run whose assertions do not all hold.
func judged(dir string, s *analysis.Summary) error {
	var not []string
	var advice string
	result := s.Result()
	for _, v := range s.Verdicts {
		if v.Result != result {
			continue
		}
		not = append(not, v.Assertion)
		for i := range v.Checks {
			advice = cmp.Or(advice, v.Checks[i].Advice())
		}
	}
	switch result {
	case analysis.Fails:
		return fault.New(fault.Exceeded, dir, "the table of assertions says by how much", "%s: %s",
			several(len(not), "assertion fails", "assertions fail"), strings.Join(not, "; "))
	case analysis.Undecided:
		return fault.New(fault.Invalid, dir, cmp.Or(advice, "the table of assertions says why"), "%s: %s",
			several(len(not), "assertion is undecided", "assertions are undecided"), strings.Join(not, "; "))
	}
	return nil
}

func several(n int, one, many string) string {
	if n == 1 {
		return "an " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// produce writes what guests make of the run, and says what that is.
func produce(out io.Writer, w *record.Writer, r record.Run, trials []record.Trial, silent bool) error {
	for _, g := range kind.All(kind.Subject) {
		p, ok := g.(measured.Producer)
		if !ok {
			continue
		}
		for _, made := range p.Produce(r, trials) {
			if err := w.WriteFile(made.File, []byte(made.Text)); err != nil {
				return err
			}
			if !silent {
				fmt.Fprintf(out, "made:      %s: %s\n", filepath.Join(w.Dir(), made.File), made.Says)
			}
		}
	}
	return nil
}

// writePage writes the run's page, the report for readers who prefer charts.
func writePage(w *record.Writer, s *analysis.Summary, r record.Run, trials []record.Trial) error {
	var b bytes.Buffer
	if err := report.HTML(&b, s, r, trials, report.HTMLOptions{Dir: w.Dir()}); err != nil {
		return err
	}
	return w.WriteFile(record.ReportFile, b.Bytes())
}

// BegunOr gives the error of a run that was interrupted before its first trial, as while nodes join, the exit code of
// one that was interrupted later.
func BegunOr(err error) error {
	if !errors.Is(err, context.Canceled) || fault.CodeOf(err) != fault.Internal {
		return err
	}
	return fault.New(fault.Invalid, "", "run it again", "interrupted before the first trial: nothing was measured")
}

// ended says that the run ended before its time. An interrupted run is incomplete, and a script that waits for it must
// see that: its exit code is that of an invalid run.
func ended(r record.Run, trials []record.Trial, dir string, err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	whole := map[int]bool{}
	for _, t := range trials {
		if t.Validity.Failed == "" {
			whole[t.Index] = true
		}
	}
	return fault.New(fault.Invalid, dir, "'tare report "+dir+"' shows what there is",
		"interrupted: the run is partial, with %d of %d trials", len(whole), len(r.Plan))
}

// TextOptions suit a report that a file gets: colours and the width of the window on a terminal, plain text elsewhere
// or when NO_COLOR is set (no-color.org). f is nil where there is no file.
func TextOptions(f *os.File, dir string, all bool) report.Options {
	o := report.Options{Dir: dir, All: all}
	if f == nil || !isatty.IsTerminal(f.Fd()) {
		return o
	}
	o.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
		o.Width = min(int(size.Col), 120)
	}
	return o
}
