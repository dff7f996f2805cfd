package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/internal/results/session"
)

func init() { register(newReport) }

type reportFlags struct {
	formats, asserted []string
	out               string
	all               bool // print everything, in text and Markdown
}

func newReport() *cobra.Command {
	var f reportFlags
	c := &cobra.Command{
		Use:   "report DIR",
		Short: "Read a run directory again and report on it",
		Long: `Read a run directory again and report on it. The report is computed anew from the trials, not taken from the summary that the run left.

Formats; several, separated by commas, are written one after another to standard output:

` + formatLines(report.Runs.Formats()) + `

Text and Markdown begin with a table of the leading metrics; --all adds every metric, note and model.

An invalid run is reported as invalid; the exit code is still 0, since the report was made. --assert adds
assertions to those of the run, and the exit code is then that of 'tare run': 5 where one fails, 4 where one is
undecided, or the run is invalid or partial.`,
		Example: `  tare report tare-run-quickstart-20260102-030405
  tare report DIR --format html -o report.html
  tare report DIR --all
  tare report DIR --format md > report.md
  tare report DIR --format csv > estimates.csv
  tare report DIR --format otlp | curl -H 'Content-Type: application/json' -d @- http://localhost:4318/v1/metrics
  tare report DIR --format junit -o tare.xml
  tare report DIR --assert 'memory_hard_bytes <= 50MB'
  tare report DIR --format bench > run.txt && benchstat -col /arm run.txt`,
		Args: oneRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.out != "" && len(f.formats) > 1 {
				return fault.New(fault.Usage, "--format "+strings.Join(f.formats, ","), "write one file for each",
					"--output takes one format, got %d", len(f.formats))
			}
			var writers []report.Writer[*report.Run]
			for _, name := range f.formats {
				one, err := report.Runs.Writer(name)
				if err != nil {
					return err
				}
				writers = append(writers, one)
			}
			var s *analysis.Summary
			write := func(w io.Writer) error {
				return promptly(cmd.Context(), func() (err error) {
					s, err = writeReport(w, args[0], f, writers)
					return err
				})
			}
			var err error
			if f.out == "" {
				err = write(cmd.OutOrStdout())
			} else {
				// writeFile leaves the file as it was if there is an error.
				err = writeFile(cmd.Context(), f.out, "the report", "make room, or name another file with -o", write)
			}
			if err != nil || len(f.asserted) == 0 {
				return err
			}
			return session.Concluded(args[0], s)
		},
	}
	c.Flags().StringSliceVar(&f.formats, formatFlag, []string{"text"},
		strings.Join(report.Runs.Names(), ", ")+"; several with commas")
	completeFormats(c, report.Runs.Formats())
	c.Flags().StringArrayVar(&f.asserted, "assert", nil,
		"budget to check the run against, beside its own, such as 'memory_hard_bytes <= 50MB'; may be repeated")
	c.Flags().BoolVar(&f.all, "all", false, "text and Markdown: every metric, note and model")
	c.Flags().StringVarP(&f.out, "output", "o", "", "file to write instead of standard output")
	return c
}

// assert adds assertions to those of a run.
func assert(run *record.Run, texts []string) error {
	for _, raw := range texts {
		a, err := spec.ParseAssertion(raw, run.Metrics)
		if err != nil {
			return fault.New(fault.Usage, "--assert", assertion.Hint, "%q %s", text.ClipTo(raw, 80), err)
		}
		run.Assert = lists.Include(run.Assert, a.String())
	}
	return nil
}

func writeReport(
	w io.Writer, dir string, flags reportFlags, writers []report.Writer[*report.Run],
) (*analysis.Summary, error) {
	c, err := readRun(dir)
	if err != nil {
		return nil, err
	}
	if err := assert(&c.Run, flags.asserted); err != nil {
		return nil, err
	}
	s, err := analysis.Summarize(c.Run, c.Trials)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, dir, "", "the run cannot be reported on")
	}
	s.Warnings = append(s.Warnings, c.Warnings...)
	r := &report.Run{Summary: s, Record: c.Run, Trials: c.Trials}
	for _, write := range writers {
		err := write(w, r, textOptions(w, dir, flags.all))
		if err != nil {
			return nil, fmt.Errorf("reporting on %s: %w", dir, err)
		}
	}
	return s, nil
}

// textOptions returns the options that suit the output w.
func textOptions(w io.Writer, dir string, all bool) report.Options {
	return session.TextOptions(fileOf(w), dir, all)
}
