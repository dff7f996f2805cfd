package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "bench", Help: "the Go benchmark format, a line for each valid trial, which benchstat reads",
		Run: func(w io.Writer, r *Run, _ Options) error { return Bench(w, r.Record, r.Trials) },
	})
}

// benchWarning warns users who compare the lines of two runs. Two runs of the same thing differ by more than the
// trials within one run do, and benchstat, which treats every trial as independent, calls that difference significant.
const benchWarning = "compare arms of one run (-col /arm); two runs differ by more than their trials show: see " +
	"tare compare"

// Bench writes the valid values of the trials in the Go benchmark format (golang.org/design/14313-benchmark-format), so
// that "benchstat -col /arm FILE" compares the arms. It writes a line for each attempt at a trial, with the values that
// no earlier attempt had, and no line if there are none. Trials of one arm and level share a name, as repetitions of
// one benchmark do; benchstat then treats the arms as unpaired.
func Bench(w io.Writer, run record.Run, trials []record.Trial) error {
	trials = slices.Clone(trials)
	// The baseline goes first: benchstat compares the other arms with the first one that it reads.
	slices.SortStableFunc(trials, func(a, b record.Trial) int {
		return cmp.Or(analysis.CompareArms(a.Arm, b.Arm), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Attempt, b.Attempt))
	})
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "goos: linux\npkg: tare\n")
	for _, c := range []struct{ key, value string }{
		{"cpu", run.Environment.CPUModel}, {"kernel", run.Environment.Kernel}, {"run", run.ID},
	} {
		if c.value != "" {
			fmt.Fprintf(b, "%s: %s\n", c.key, clean(c.value))
		}
	}
	// benchstat prints this line above its tables.
	fmt.Fprintf(b, "warning: %s\n", benchWarning)
	for arm, why := range lists.ByKey(run.Absent) {
		fmt.Fprintf(b, "absent-%s: %s\n", word(arm), clean(why))
	}
	defined := run.Defined()
	said := map[string]bool{}
	type told struct {
		index  int
		metric string
	}
	before := map[told]bool{} // values that an earlier attempt already has
	for _, t := range trials {
		if t.Validity.Failed != "" {
			continue
		}
		metrics, err := analysis.Metrics(t, defined)
		if err != nil {
			return fault.Wrap(err, fault.Usage, fmt.Sprintf("trial %d", t.Index+1), "", "its histograms cannot be read")
		}
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(metrics)), func(m string) bool {
			return m == "" || word(m) != m || !t.Validity.Stands(m) || t.Attempt > 0 && before[told{t.Index, m}]
		})
		if len(names) == 0 {
			continue
		}
		for _, m := range names {
			before[told{t.Index, m}] = true
			if !said[m] {
				said[m] = true
				if better := defined.Of(m).Better; better != metric.Neither {
					fmt.Fprintf(b, "Unit %s better=%s\n", m, better)
				}
			}
		}
		fmt.Fprintf(b, "%s 1", benchName(run, t))
		for _, m := range names {
			fmt.Fprintf(b, " %s %s", strconv.FormatFloat(metrics[m], 'g', -1, 64), m)
		}
		fmt.Fprintln(b)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing the report in the benchmark format: %w", err)
	}
	return nil
}

// benchName returns a name that ends in the number of CPUs, as Go's benchmark names do. Without the number, benchstat
// would take the end of an arm's name such as v-2 for it.
func benchName(run record.Run, t record.Trial) string {
	var b strings.Builder
	b.WriteString("Benchmark")
	for _, part := range strings.FieldsFunc(word(run.Experiment), func(r rune) bool { return r == '-' || r == '_' }) {
		first, n := utf8.DecodeRuneInString(part)
		b.WriteString(string(unicode.ToUpper(first)) + part[n:])
	}
	b.WriteString("/arm=" + word(t.Arm))
	for f, level := range lists.ByKey(t.Factors) {
		b.WriteString("/" + word(f) + "=" + word(level))
	}
	return b.String() + "-" + strconv.Itoa(max(run.Environment.CPUs, 1))
}

// word replaces characters that would end a name or a part of a name, and those that are not graphic, by underscores.
func word(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsGraphic(r) || r == '/' || r == '=' {
			return '_'
		}
		return r
	}, s)
}
