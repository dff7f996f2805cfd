// Package assertion reads budgets: bounds on a metric of an arm, as in "assert" of a spec and --assert on the command
// line. Package analysis checks whether a run keeps them.
package assertion

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
)

// Op compares a value with a bound.
type Op string

// The operators.
const (
	AtMost  Op = "<="
	Below   Op = "<"
	AtLeast Op = ">="
	Above   Op = ">"
	Equal   Op = "=="
)

// Upper reports whether the bound is an upper bound.
func (o Op) Upper() bool { return o == AtMost || o == Below }

// Against names the figure to which a bound applies.
type Against string

// The figures to which a bound can apply.
const (
	Value      Against = "value"      // the metric itself, in its unit: 50MB
	Difference Against = "difference" // the difference from the baseline, in the metric's unit: +200us
	Change     Against = "change"     // the difference from the baseline, as a fraction of its value: +10% is 0.1
)

// Assertion is one budget.
type Assertion struct {
	Metric    string
	Arm       string            // empty: every arm except the baseline and its twin
	Component string            // a component of the arm's subject; empty: the whole subject
	Level     map[string]string // values of some factors; the assertion applies to every level that has them
	Op        Op
	Against   Against
	Bound     float64 // in the unit of the metric; a Change is a fraction: 0.1
	written   string  // the bound as it was written, without spaces
}

// MostText is the length in bytes of the longest assertion that Parse accepts.
const MostText = 1000

// Most is the largest number of assertions that a run may have.
const Most = 100

// MostChecks limits the checks that all assertions of a run need together. An assertion needs one check for each arm
// and level to which it applies.
const MostChecks = 10_000

// The labels with a fixed meaning. Every other label names a factor.
const (
	armLabel       = "arm"
	componentLabel = "component"
)

var (
	form   = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)\s*(?:\{([^{}]*)\})?\s*(<=|>=|==|<|>)\s*([^\s=].*)$`)
	number = regexp.MustCompile(`^([+-]?)([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-zµμ%]*)$`)
)

// Hint describes the syntax of assertions.
const Hint = "write METRIC <= BOUND, such as 'memory_hard_bytes <= 50MB', 'latency_p99_seconds <= +200us' or " +
	"'cpu_seconds_per_request{arm=new} <= +10%'; a sign makes the bound a difference to the baseline"

// Parse reads an assertion, which has this form:
//
//	METRIC [{arm=NAME, component=NAME, FACTOR=LEVEL}] OPERATOR BOUND
//
// A bound without a sign applies to the value itself. With a sign it applies to the difference from the baseline: in
// the unit of the metric, or in per cent of the baseline's value.
//
// The message of an error continues a sentence whose subject is the text: "is not a metric, ...". If the text has the
// form of an assertion, Metric is set even on an error.
func Parse(text string) (Assertion, error) {
	if len(text) > MostText {
		return Assertion{}, fmt.Errorf("is %d bytes long; at most %d are allowed", len(text), MostText)
	}
	m := form.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return Assertion{}, errors.New("is not a metric, an operator (<=, <, >=, >, ==) and a bound")
	}
	a := Assertion{Metric: m[1], Op: Op(m[3])}
	if err := a.labels(m[2]); err != nil {
		return a, err
	}
	return a, a.bound(m[4])
}

// labels reads the labels in braces.
func (a *Assertion) labels(raw string) error {
	if strings.TrimSpace(raw) == "" {
		return nil
	}
	seen := map[string]bool{}
	for _, label := range strings.Split(raw, ",") {
		name, value, ok := strings.Cut(label, "=")
		name, value = strings.TrimSpace(name), strings.TrimFunc(value, quoteOrSpace)
		switch {
		case !ok || name == "" || value == "":
			return fmt.Errorf("has %q in its braces, which is not NAME=VALUE", text.Clip(strings.TrimSpace(label)))
		case seen[name]:
			return fmt.Errorf("names %q twice", text.Clip(name))
		}
		switch seen[name] = true; name {
		case armLabel:
			a.Arm = value
		case componentLabel:
			a.Component = value
		default:
			if a.Level == nil {
				a.Level = map[string]string{}
			}
			a.Level[name] = value
		}
	}
	return nil
}

func quoteOrSpace(r rune) bool { return r == '"' || unicode.IsSpace(r) }

// units holds, for each unit of a metric, the units in which a bound may be written, with their factors to seconds,
// bytes, a fraction or CPUs.
var units = map[string]map[string]float64{
	quantity.Seconds: {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "min": 60},
	quantity.Bytes: {
		"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	},
	quantity.Part: {"%": 0.01, "": 1},
	quantity.CPUs: {"": 1, "CPU": 1, "CPUs": 1},
}

// noUnit is used for metrics that are counts, which have no entry in units.
var noUnit = map[string]float64{"": 1}

func (a *Assertion) bound(raw string) error {
	m := number.FindStringSubmatch(strings.TrimSpace(raw))
	if m == nil {
		return fmt.Errorf("has the bound %q, which is not a number with a unit", text.Clip(raw))
	}
	v, err := strconv.ParseFloat(m[2], 64)
	if err != nil || math.IsInf(v, 0) {
		return fmt.Errorf("has the bound %q, which is not a number", text.Clip(raw))
	}
	a.written = strings.ReplaceAll(strings.TrimSpace(raw), " ", "")
	a.Against = Value
	if m[1] != "" {
		a.Against = Difference
	}
	base, _, _ := strings.Cut(quantity.UnitOf(a.Metric), " ")
	known, has := units[base]
	if !has {
		known = noUnit
	}
	factor, is := known[m[3]]
	switch {
	case m[1] != "" && m[3] == "%":
		a.Against, factor = Change, 0.01
	case m[3] == "%" && !is:
		return fmt.Errorf("has the bound %s, but %s is not a fraction; for a change from the baseline, write +%s",
			a.written, a.Metric, a.written)
	case m[3] == "" && v == 0: // 0 needs no unit
	case !is && m[3] == "":
		return fmt.Errorf("has the bound %s without a unit; %s is in %s", a.written, a.Metric, namesOf(known))
	case !is:
		return fmt.Errorf("has the bound %s, and %s is in %s", a.written, a.Metric, namesOf(known))
	}
	a.Bound = v * factor
	if m[1] == "-" {
		a.Bound = -a.Bound
	}
	if math.IsInf(a.Bound, 0) {
		return fmt.Errorf("has the bound %s, which is too large", a.written)
	}
	if a.Op == Equal && a.Against != Value {
		return fmt.Errorf("asks for an exact difference to the baseline, which no measurement can show; use <= or >=")
	}
	return nil
}

// namesOf lists the units, the smallest first. It leaves out spellings that are not ASCII.
func namesOf(known map[string]float64) string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(known)), func(n string) bool { return n == "" || n > "~" })
	if len(names) == 0 {
		return "plain numbers"
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(known[a], known[b]) })
	return strings.Join(names, ", ")
}

// String returns the assertion in canonical form. Parse reads that form as the same assertion.
func (a Assertion) String() string { return a.of() + " " + string(a.Op) + " " + a.written }

// of returns the metric, with the arm, component and level in braces.
func (a Assertion) of() string {
	var labels []string
	if a.Arm != "" {
		labels = append(labels, armLabel+"="+a.Arm)
	}
	if a.Component != "" {
		labels = append(labels, componentLabel+"="+a.Component)
	}
	for name, level := range lists.ByKey(a.Level) {
		labels = append(labels, name+"="+level)
	}
	if len(labels) == 0 {
		return a.Metric
	}
	return a.Metric + "{" + strings.Join(labels, ",") + "}"
}

// Bounded returns the bound as it was written, without spaces: "+10%".
func (a Assertion) Bounded() string { return a.written }

// Keeps reports whether a value, difference or change keeps the bound.
func (a Assertion) Keeps(v float64) bool {
	switch a.Op {
	case AtMost:
		return v <= a.Bound
	case Below:
		return v < a.Bound
	case AtLeast:
		return v >= a.Bound
	case Above:
		return v > a.Bound
	}
	return v == a.Bound
}
