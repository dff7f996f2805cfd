package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/usage"
	"tare/internal/results/calibrate"
	"tare/internal/scale/ledger"
)

func init() { register(newCalibrate) }

// faultVariable names the environment variable that builds a fault into the scale, for tests of the calibration itself.
const faultVariable = "TARE_CALIBRATE_FAULT"

func newCalibrate() *cobra.Command {
	var o calibrate.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "calibrate",
		Short: "Weigh known weights and print the error of each",
		Long: `Calibrate weighs what is known by other means, and prints by how much the scale is off: its clock and pacer; the
latency of a server with known delays and stalls; eBPF programs of known run time, split over two control groups;
processes that know their CPU time and memory; and, as information, the smallest difference that this machine can see.

A weight that is out of tolerance because of what else the machine did is tried again, and then reported as not judged,
together with what disturbed it.

Exit code 5: a weight is out of tolerance and nothing else explains it, so the scale itself is wrong. Exit code 4: in
some section no weight could be judged, because all were disturbed or this machine cannot measure them.`,
		Example: `  tare calibrate --quick
  tare calibrate --only clock,latency --json`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCalibrate(cmd, o, asJSON)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Quick, "quick", false, "the short form: one to three minutes")
	f.StringSliceVar(&o.Only, "only", nil, "sections to weigh, of "+strings.Join(calibrate.Sections, ", ")+"; default all")
	f.BoolVar(&asJSON, "json", false, "print one JSON document and nothing else (schema "+calibrate.Schema+")")
	return cmd
}

func runCalibrate(cmd *cobra.Command, o calibrate.Options, asJSON bool) (err error) {
	if o.Fault, err = calibrate.ParseFault(os.Getenv(faultVariable)); err != nil {
		return err
	}
	if err := require("tare calibrate", "this machine cannot be calibrated", "cgroup-create", "bpf-syscall"); err != nil {
		return err
	}
	_, own, err := ground(cmd.Context(), stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	o.Self = own.path
	o.Say = func(section, what string) { fmt.Fprintf(stderr, "%s: %s\n", section, what) }
	r, err := calibrate.Run(cmd.Context(), o)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON {
		err = printJSON(out, " ", r)
	} else {
		err = printCalibration(out, r)
	}
	if err != nil {
		return fault.Wrap(err, fault.Machine, "", "make room, or write somewhere else", "cannot write the calibration")
	}
	return r.Verdict()
}

// printCalibration writes the table for people.
func printCalibration(w io.Writer, r *calibrate.Report) error {
	m := r.Machine
	fmt.Fprintf(w, "Calibrated in %s: %s, Linux %s, %d CPUs, cgroup %s, clock %s",
		quantity.Value(r.Seconds, quantity.Seconds), m.Hostname, m.Kernel, m.CPUs, m.CgroupMode, m.Clocksource)
	if m.Sampler != "" {
		fmt.Fprintf(w, ", samples by %s", m.Sampler)
	}
	fmt.Fprintln(w)
	if r.Fault != "" {
		fmt.Fprintf(w, "A fault is built in on purpose: %s\n", r.Fault)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	section := ""
	for _, x := range r.Weights {
		if x.Section != section {
			section = x.Section
			fmt.Fprintf(t, "\n%s\ttrue\tmeasured\terror\tallowed\tverdict\t\n", section)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, valueOf(x.True, x.Unit), reading(x), errorOf(x), allowed(x),
			verdictOf(x), remark(x))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d weights in tolerance, %d out of it, %d not judged, %d missing%s\n", r.Passed, r.Failed,
		r.Unjudged, r.Missing, judgedIn(r))
	for _, x := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", x)
	}
	return nil
}

func valueOf(v *float64, unit string) string {
	if v == nil {
		return "-"
	}
	return quantity.Value(*v, unit)
}

func reading(x calibrate.Weight) string {
	if x.Measured != nil && x.Lo != nil && x.Hi != nil {
		return quantity.Interval(*x.Measured, *x.Lo, *x.Hi, x.Unit)
	}
	return valueOf(x.Measured, x.Unit)
}

func errorOf(x calibrate.Weight) string {
	if x.Error == nil {
		return "-"
	}
	text := quantity.DeltaValue(*x.Error, x.Unit)
	if x.Unit != quantity.Part && *x.True != 0 {
		text += fmt.Sprintf(" (%+.2f %%)", 100**x.Error / *x.True)
	}
	return text
}

func allowed(x calibrate.Weight) string {
	if x.Tolerance == (calibrate.Tolerance{}) {
		return "-"
	}
	return quantity.Rough(x.Tolerance.Allows(x), x.Unit)
}

func verdictOf(x calibrate.Weight) string {
	switch x.Verdict {
	case calibrate.Fail:
		return "FAIL"
	case calibrate.Disturbed:
		return "not judged"
	case calibrate.Told:
		return "-"
	}
	return string(x.Verdict)
}

// judgedIn returns, for each section in which some weights could not be judged, how many could.
func judgedIn(r *calibrate.Report) string {
	var parts []string
	for _, section := range calibrate.Sections {
		if judged, of := r.Judged(section); judged < of {
			parts = append(parts, fmt.Sprintf("%s %d of %d", section, judged, of))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "; judged: " + strings.Join(parts, ", ")
}

// remark returns what else a reader should know about a row of the table.
func remark(x calibrate.Weight) string {
	var parts []string
	if x.ClosedLoop != nil {
		parts = append(parts, "a closed-loop clock reads "+quantity.Value(*x.ClosedLoop, x.Unit))
	}
	if x.Verdict == calibrate.Missing || (x.Verdict == calibrate.Fail || x.Verdict == calibrate.Disturbed) &&
		x.Note != "" {
		parts = append(parts, x.Note)
	}
	if x.Undisturbed < x.Of && x.Undisturbed > 0 {
		parts = append(parts, fmt.Sprintf("judged by the %d of %d %s that nothing disturbed", x.Undisturbed, x.Of, x.Parts))
	}
	if x.Verdict == calibrate.Disturbed {
		parts = append(parts, disturber(x))
		if x.Longest > 0 {
			parts = append(parts, fmt.Sprintf("stalls of up to %s, %.2g %% of the time",
				quantity.Value(x.Longest, quantity.Seconds), 100*x.Stood))
		}
	}
	if x.Tries > 1 {
		parts = append(parts, fmt.Sprintf("try %d", x.Tries))
	}
	return strings.Join(parts, "; ")
}

// disturber returns what else used CPU time while a weight was measured, with the names of the culprits if known.
func disturber(x calibrate.Weight) string {
	stolen := fmt.Sprintf("the hypervisor took %.3g %% of the CPU time", 100*x.Stolen)
	switch others := 100 * max(x.Others-x.Stolen, 0); {
	case x.Cause == ledger.Hypervisor:
		return stolen
	case x.Stolen >= 0.005:
		return fmt.Sprintf("other tasks took %.3g %% of the CPU time%s, and %s", others, culprits(x), stolen)
	default:
		return fmt.Sprintf("other tasks took %.3g %% of the CPU time%s", others, culprits(x))
	}
}

// culprits returns the names of the processes that disturbed a weight, in parentheses; empty if none is known.
func culprits(x calibrate.Weight) string {
	var names []string
	for _, c := range x.Culprits {
		name := strings.Map(func(r rune) rune {
			if unicode.IsControl(r) { // a process chooses its own name
				return ' '
			}
			return r
		}, c.Comm)
		names = lists.Include(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
