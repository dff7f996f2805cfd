// Package session runs an experiment from beginning to end and reports on it, for the commands that run experiments:
// the flags and the record of a run (Flags), its progress, its summary and report (Run), and its final error.
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

// Output says where and how a run reports its progress and results.
type Output struct {
	Out      io.Writer // the report, or one JSON document
	Log      io.Writer // progress and warnings, for people
	Terminal *os.File  // the file that Log writes to; if it is a terminal, progress is one line that changes
	Show     Show
	Text     func(w io.Writer, dir string, all bool) report.Options // options of a report on w
	Warnings []string                                               // about the run as a whole
}

// Run runs the trials of r, records them with w and prints the results. It sets r.Writer, r.Progress and r.Enough, and
// returns all errors as one.
func Run(ctx context.Context, r *engine.Runner, w *record.Writer, o Output) error {
	trials, err := Measure(ctx, r, w, o)
	return o.Conclude(w, *r.Record, trials, err)
}

// Measure is the first part of Run: it runs the trials, without a summary. It prints only progress and warnings.
func Measure(ctx context.Context, r *engine.Runner, w engine.Recorder, o Output) ([]record.Trial, error) {
	p := o.progress(r.Spec, *r.Record, r.Estimate(), w.Dir())
	defer context.AfterFunc(ctx, p.interrupted)()
	for _, text := range o.Warnings {
		p.warn(record.OtherRun, text)
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

// enough reports whether a run without a fixed number of blocks may end, and why, or else what is missing.
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

// Concluded returns an error if a run is invalid or partial, or if its assertions do not all hold. An assertion that
// fails takes precedence: it is a result even if the run is otherwise invalid or partial.
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

// judged returns an error if a run's assertions do not all hold.
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

// produce writes the files that guests make from the run's results. Unless silent is set, it lists on out which files
// it wrote, and which it did not because the results do not support them.
func produce(out io.Writer, w *record.Writer, r record.Run, trials []record.Trial, silent bool) error {
	for _, g := range kind.All(kind.Subject) {
		p, ok := g.(measured.Producer)
		if !ok {
			continue
		}
		for _, made := range p.Produce(r, trials) {
			is := "not made:"
			if made.Text != "" {
				is = "made:"
				if err := w.WriteFile(made.File, []byte(made.Text)); err != nil {
					return err
				}
			}
			if !silent {
				fmt.Fprintf(out, "%-10s %s: %s\n", is, filepath.Join(w.Dir(), made.File), made.Says)
			}
		}
	}
	return nil
}

// writePage writes the report as an HTML page with charts.
func writePage(w *record.Writer, s *analysis.Summary, r record.Run, trials []record.Trial) error {
	var b bytes.Buffer
	if err := report.HTML(&b, s, r, trials, report.HTMLOptions{Dir: w.Dir()}); err != nil {
		return err
	}
	return w.WriteFile(record.ReportFile, b.Bytes())
}

// BegunOr returns err, unless it says that a run was interrupted before its first trial, for example while nodes were
// joining. It then returns an error with the exit code of a run that was interrupted later.
func BegunOr(err error) error {
	if !errors.Is(err, context.Canceled) || fault.CodeOf(err) != fault.Internal {
		return err
	}
	return fault.New(fault.Invalid, "", "run it again", "interrupted before the first trial: nothing was measured")
}

// ended returns the error of a run that ended early with err. If the run was interrupted, the error has the exit code
// of an invalid run, so that a script notices that the run is incomplete.
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

// TextOptions returns the options of a report that is written to f, which may be nil: on a terminal, the width of its
// window up to 120 columns, and colours unless NO_COLOR is set (no-color.org) or TERM is dumb; elsewhere, plain text.
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
