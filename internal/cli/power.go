package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/internal/results/session"
)

func init() { register(newPower) }

func newPower() *cobra.Command {
	var sizes []string
	var probability string
	var show session.Show
	c := &cobra.Command{
		Use:   "power DIR",
		Short: "Estimate how many blocks a run needs to detect a difference, from the noise of an earlier run",
		Long: `Estimate from a recorded run how many blocks a run like it needs to detect differences of 5, 10 and 20 % of the
baseline. The recorded run may be short, and may have the baseline and its A/A twin alone: six blocks are enough to
begin with.`,
		Example: `  tare power tare-run-quickstart-20260102-030405
  tare power DIR --see 2%,10% --power 80%`,
		Args: oneRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			var parts []float64
			for _, text := range sizes {
				part, err := percentOf("--see", text, 0, 1000)
				if err != nil {
					return err
				}
				parts = append(parts, part)
			}
			power, err := percentOf("--power", probability, 50, 99.9)
			if err != nil {
				return err
			}
			write, err := report.Powers.Writer(show.Format)
			if err != nil {
				return err
			}
			return promptly(cmd.Context(), func() error {
				c, err := readRun(args[0])
				if err != nil {
					return err
				}
				p, err := analysis.PowerOf(c.Run, c.Trials, parts, power)
				if err != nil {
					return fault.Wrap(err, fault.Usage, args[0], "", "the run cannot be planned from")
				}
				p.Warnings = append(p.Warnings, c.Warnings...)
				if len(p.Rows) == 0 {
					return fault.New(fault.Invalid, args[0], "run it with six blocks or more (--blocks 6)",
						"no difference to its baseline has an interval, so its noise is not known")
				}
				out := cmd.OutOrStdout()
				return write(out, p, textOptions(out, "", show.All))
			})
		},
	}
	c.Flags().StringSliceVar(&sizes, "see", []string{"5%", "10%", "20%"},
		"sizes of differences, in per cent of the baseline")
	c.Flags().StringVar(&probability, "power", "95%", "share of runs that should detect the difference")
	registerFormat(c, &show, report.Powers)
	show.RegisterAll(c.Flags())
	return c
}

// percentOf parses a percentage strictly between two limits, and returns it as a fraction.
func percentOf(flag, text string, above, below float64) (float64, error) {
	number, is := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !is || err != nil || !(v > above && v < below) {
		return 0, fault.New(fault.Usage, flag, "such as 10%", "%q is not a percentage between %g and %g", text, above,
			below)
	}
	return v / 100, nil
}
