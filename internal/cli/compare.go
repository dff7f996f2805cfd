package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/results/report"
	"tare/internal/results/session"
)

func init() { register(newCompare) }

const (
	maxRuns = 1000      // in a directory
	maxKept = 128 << 20 // memory that the runs of a directory may take, in bytes
)

type compareFlags struct {
	history string
	anyway  bool
	page    string // file to write as HTML
	show    session.Show
}

func newCompare() *cobra.Command {
	var f compareFlags
	c := &cobra.Command{
		Use:   "compare OLD NEW...",
		Short: "Compare recorded runs, allowing for the variance between runs",
		Long: `Compare recorded runs of one experiment. OLD and NEW are run directories, or directories that hold repeated runs of the
same thing. Each run is compared with its own baseline first. The intervals include how much runs vary, estimated from
the repeats or from three or more runs of --history; the runs' A/A twins can only make them wider. With neither repeats
nor a history there is no verdict. If several NEW are given, each is compared with OLD.

It is better to have both versions as arms of one run, where they differ in nothing else:

  tare try --against 'OLD COMMAND' -- NEW COMMAND

Without runs, --history DIR shows each metric over all runs in DIR, and where its level shifted.

Runs that differ in machine, kernel, spec or metric definitions, and invalid runs, are refused unless --anyway is given.`,
		Example: `  tare compare tare-run-quickstart-20260102-030405 tare-run-quickstart-20260109-030405
  tare compare before/ after/
  tare compare last-release/ tare-run-quickstart-20260109-030405 --history runs/
  tare compare --history runs/`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && f.history != "", len(args) >= 2:
				return nil
			}
			return fault.New(fault.Usage, cmd.CommandPath(), "name an old run and a new one, or --history DIR alone",
				"want two runs or more, got %d", len(args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var page bytes.Buffer
			err := promptly(cmd.Context(), func() error { return compare(cmd.OutOrStdout(), &page, args, f) })
			// If the context has ended, the comparison may still be at work on the page. Runs with nothing in common have a
			// page, which says why, and an error.
			if cmd.Context().Err() != nil || page.Len() == 0 {
				return err
			}
			return errors.Join(err, writeFile(cmd.Context(), f.page, "the page",
				"make room, or name another file with --html", func(w io.Writer) error {
					_, err := page.WriteTo(w)
					return err
				}))
		},
	}
	c.Flags().StringVar(&f.history, "history", "",
		"directory with earlier runs: alone, shows each metric over time; else, gives the variance between runs")
	c.Flags().BoolVar(&f.anyway, "anyway", false,
		"compare runs that differ in machine, kernel, spec or definitions, and invalid runs")
	c.Flags().StringVar(&f.page, "html", "", "HTML file to write as well")
	registerFormat(c, &f.show, report.Comparisons)
	f.show.RegisterAll(c.Flags())
	return c
}

// compare writes the comparison or, without args, the history in the requested format to out, and as HTML to page if
// that was requested.
func compare(out, page io.Writer, args []string, f compareFlags) error {
	write, err := report.Comparisons.Writer(f.show.Format)
	if err != nil {
		return err
	}
	writeHistory, err := report.Histories.Writer(f.show.Format)
	if err != nil {
		return err
	}
	var history []comparison.Source
	if f.history != "" {
		if history, err = f.readHistory(); err != nil {
			return err
		}
	}
	o := textOptions(out, "", f.show.All)
	if len(args) == 0 {
		last := slices.MaxFunc(history, func(a, b comparison.Source) int { return a.Run.Started.Compare(b.Run.Started) })
		course := comparison.Over(f.like(history, last), 1)
		if f.page != "" {
			if err := report.HistoryHTML(page, &course); err != nil {
				return err
			}
		}
		return writeHistory(out, &course, o)
	}
	if (f.show.Format != "text" || f.page != "") && len(args) > 2 {
		return fault.New(fault.Usage, "--format, --json, --html", "name one OLD and one NEW",
			"one document holds one comparison")
	}
	old, err := f.side(args[0])
	if err != nil {
		return err
	}
	history = f.like(history, old[0])
	for i, arg := range args[1:] {
		c, none := f.hold(old, args[0], arg, history)
		if c == nil {
			return none
		}
		if f.page != "" {
			if err := report.ComparisonHTML(page, c); err != nil {
				return err
			}
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := write(out, c, o); err != nil {
			return err
		}
		if none != nil {
			return none
		}
	}
	return nil
}

// hold compares one new side with the old one. If they have nothing in common, it returns an error together with the
// comparison, which says why.
func (f compareFlags) hold(old []comparison.Source, was, is string,
	history []comparison.Source) (*comparison.Comparison, error) {
	new, err := f.side(is)
	if err != nil {
		return nil, err
	}
	if err := alike(slices.Concat(old[:1], new), f.anyway); err != nil {
		return nil, err
	}
	for _, n := range new {
		if slices.ContainsFunc(old, func(o comparison.Source) bool { return comparison.Name(o) == comparison.Name(n) }) {
			return nil, fault.New(fault.Usage, n.Dir, "name another run",
				"this run is in %s as well, and would be compared with itself", was)
		}
	}
	c := comparison.Compare(old, new, history)
	if len(c.Changes) == 0 {
		return &c, fault.New(fault.Usage, is, "their arms are "+armsOf(old)+", and "+armsOf(new),
			"it has no estimate with an interval in common with %s", was)
	}
	return &c, nil
}

// side reads one side of a comparison: repeated runs of the same thing.
func (f compareFlags) side(dir string) ([]comparison.Source, error) {
	sources, err := sourcesIn(dir, nil)
	if err != nil {
		return nil, err
	}
	if err := alike(sources, f.anyway); err != nil {
		return nil, err
	}
	runs := lists.Map(sources, func(s comparison.Source) record.Run { return s.Run })
	if what := comparison.Mixed(runs); what != "" && !f.anyway {
		return nil, fault.New(fault.Usage, dir, "put the runs of each version into a separate directory, or give --anyway",
			"its runs are not repeats of the same thing: they differ in %s", what)
	}
	return sources, nil
}

// readHistory reads the runs of a history. Runs that cannot be read and invalid ones are left out and named on standard
// error.
func (f compareFlags) readHistory() (valid []comparison.Source, err error) {
	leave := func(err error) { fmt.Fprintf(stderr, "left out: %s\n", text.Line(err.Error())) }
	history, err := sourcesIn(f.history, leave)
	if err != nil || f.anyway {
		return history, err
	}
	for _, h := range history {
		if h.Summary.Valid {
			valid = append(valid, h)
			continue
		}
		leave(fmt.Errorf("%s: the run is invalid: %s (--anyway keeps it)", h.Dir,
			strings.Join(h.Summary.InvalidReasons, "; ")))
	}
	if len(valid) == 0 {
		return nil, fault.New(fault.Invalid, f.history, "see what is wrong with each: tare report", "it holds no valid run")
	}
	return valid, nil
}

// like returns the runs of a history that are comparable with a run, and prints on standard error how many it left
// out.
func (f compareFlags) like(history []comparison.Source, s comparison.Source) []comparison.Source {
	if f.anyway || len(history) == 0 {
		return history
	}
	var first string // why the first run was skipped
	kept := slices.DeleteFunc(slices.Clone(history), func(h comparison.Source) bool {
		if h.Dir == s.Dir {
			return false
		}
		reasons := comparison.Apart(s.Run, h.Run)
		first = cmp.Or(first, strings.Join(reasons, "; "))
		return len(reasons) > 0
	})
	if left := len(history) - len(kept); left > 0 {
		fmt.Fprintf(stderr, "%s: skipped %d of %d runs that differ from %s in more than what was weighed, the first in %s\n",
			f.history, left, len(history), s.Dir, text.Line(first))
	}
	return kept
}

// armsOf returns the names of the first run's arms, without the baseline and its twin.
func armsOf(sources []comparison.Source) string {
	var arms []string
	for _, e := range sources[0].Summary.Estimates {
		if e.Arm != record.Direct && e.Arm != record.AA {
			arms = lists.Include(arms, e.Arm)
		}
	}
	if len(arms) == 0 {
		return "none but the baseline"
	}
	return strings.Join(arms, ", ")
}

// sourcesIn reads a run, or all runs in a directory. With a nil skip it fails at the first run that cannot be read.
// Otherwise it leaves such runs out, and calls skip with the error of each.
func sourcesIn(dir string, skip func(error)) ([]comparison.Source, error) {
	dirs := []string{dir}
	if _, err := os.Stat(filepath.Join(dir, record.RunFile)); err != nil {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, dir, "name a run directory, or one that holds some", "cannot read it")
		}
		dirs = nil
		for _, e := range entries {
			if _, err := os.Stat(filepath.Join(dir, e.Name(), record.RunFile)); err == nil {
				dirs = append(dirs, filepath.Join(dir, e.Name()))
			}
		}
		switch {
		case len(dirs) == 0:
			return nil, fault.New(fault.Usage, dir, "a run directory is what 'tare run' writes",
				"there is no %s, neither in it nor in a directory in it", record.RunFile)
		case len(dirs) > maxRuns:
			return nil, fault.New(fault.Usage, dir, "put fewer there", "it holds %d runs, and %d are allowed", len(dirs),
				maxRuns)
		}
	}
	var sources []comparison.Source
	kept := int64(0)
	for _, d := range dirs {
		s, err := sourceOf(d)
		if kept += record.SizeOf(s); kept > maxKept {
			return nil, fault.New(fault.Usage, dir, "compare fewer runs", "its runs need more than %d MiB of memory",
				maxKept>>20)
		}
		switch {
		case err == nil:
			sources = append(sources, s)
		case skip != nil:
			skip(err)
		default:
			return nil, err
		}
	}
	if len(sources) == 0 {
		return nil, fault.New(fault.Usage, dir, "", "it holds no run that can be read")
	}
	return sources, nil
}

func sourceOf(dir string) (comparison.Source, error) {
	c, err := readRun(dir)
	if err != nil {
		return comparison.Source{}, err
	}
	s, err := analysis.Summarize(c.Run, c.Trials)
	if err != nil {
		return comparison.Source{}, fault.Wrap(err, fault.Usage, dir, "", "the run cannot be summarized")
	}
	c.Run.Plan = nil // its largest part, and plans are not compared
	return comparison.Source{Dir: dir, Run: c.Run, Summary: s, Warnings: c.Warnings}, nil
}

// alike returns an error if the runs cannot be compared.
func alike(sources []comparison.Source, anyway bool) error {
	if anyway {
		return nil
	}
	for i, s := range sources {
		if !s.Summary.Valid {
			return fault.New(fault.Invalid, s.Dir, "run it again, or compare it with --anyway", "the run is invalid: %s",
				strings.Join(s.Summary.InvalidReasons, "; "))
		}
		if reasons := comparison.Apart(sources[0].Run, s.Run); i > 0 && len(reasons) > 0 {
			return fault.New(fault.Usage, s.Dir, "compare runs that differ only in what was weighed, or give --anyway",
				"it cannot be compared with %s: they differ in %s", sources[0].Dir, strings.Join(reasons, "; "))
		}
	}
	return nil
}
