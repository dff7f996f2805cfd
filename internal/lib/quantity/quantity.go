// Package quantity formats measured values for people. The interval of a value decides how many digits are printed:
// digits that the interval makes meaningless are left out, so the output does not claim more than was measured.
package quantity

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The units in which the names of metrics end. Others are derived from these, such as "seconds per connection".
const (
	Seconds   = "seconds"
	Bytes     = "bytes"
	PerSecond = "per second"
	Part      = "part" // fraction of a whole: 0.71 is 71 %
	CPUs      = "CPUs"
	Count     = "count"
)

// UnitOf returns the unit of a metric. It finds the unit at the end of the metric's name, as in latency_p50_seconds,
// map_bytes, throughput_per_second, bpf_seconds_per_connection and bpf_client_share. Any other name is a count.
func UnitOf(metric string) string {
	if base, per, ok := strings.Cut(metric, "_per_"); ok {
		per = strings.ReplaceAll(per, "_", " ")
		for _, unit := range []string{Seconds, Bytes} {
			if base == unit || strings.HasSuffix(base, "_"+unit) {
				return unit + " per " + per
			}
		}
		return "per " + per
	}
	switch metric[strings.LastIndexByte(metric, '_')+1:] {
	case Seconds:
		return Seconds
	case Bytes:
		return Bytes
	case "share", "ratio", "part":
		return Part
	case "cpus":
		return CPUs
	}
	return Count
}

// Label returns a metric's name for a table whose values have units: "latency p50", "eBPF per connection", "map
// bytes".
func Label(metric string) string {
	words := strings.Split(metric, "_")
	var kept []string
	for i, w := range words {
		last := i == len(words)-1
		switch {
		case (w == Seconds || w == Bytes) && i > 0 && (!last || len(kept) > 1):
		case w == Seconds && i > 0:
			kept = append(kept, "time")
		case w == "p999":
			kept = append(kept, "p99.9")
		case w == "bpf":
			kept = append(kept, "eBPF")
		case w == "cpus":
			kept = append(kept, "CPUs")
		case w == "cpu":
			kept = append(kept, "CPU")
		default:
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}

// Value formats one value with three significant digits and its unit: "3.10 us", "1.20 MB", "71.0 %". Bytes and whole
// counts have no decimals.
func Value(v float64, unit string) string {
	s := scaleFor(unit, v)
	return s.number(v, s.digits(v), false) + s.suffix
}

// Rough is like Value with two significant digits, for values that are bounds or are mentioned in passing.
func Rough(v float64, unit string) string {
	s := scaleFor(unit, v)
	return s.number(v, s.atMost(2-1-magnitude(v/s.factor), v), false) + s.suffix
}

// Interval formats a value with its interval: "3.1 us [2.8, 3.4]".
func Interval(v, lo, hi float64, unit string) string { return interval(v, lo, hi, unit, false) }

// Delta is like Interval for a difference: every number has a sign.
func Delta(v, lo, hi float64, unit string) string { return interval(v, lo, hi, unit, true) }

// DeltaValue is like Value for a difference.
func DeltaValue(v float64, unit string) string {
	s := scaleFor(unit, v)
	return s.number(v, s.digits(v), true) + s.suffix
}

func interval(v, lo, hi float64, unit string, signed bool) string {
	s := scaleFor(unit, v, lo, hi)
	decimals := s.decimals(v, lo, hi)
	return s.number(v, decimals, signed) + s.suffix +
		" [" + s.number(lo, decimals, signed) + ", " + s.number(hi, decimals, signed) + "]"
}

// scale is a unit for output. Values are divided by factor.
type scale struct {
	factor float64
	suffix string
	whole  bool // without decimals
}

var (
	timeScales = []scale{{1e-9, " ns", false}, {1e-6, " us", false}, {1e-3, " ms", false}, {1, " s", false}}
	byteScales = []scale{{1, " B", true}, {1e3, " kB", false}, {1e6, " MB", false}, {1e9, " GB", false},
		{1e12, " TB", false}}
)

// scaleFor returns the largest scale in which the largest of the values is at least 1.
func scaleFor(unit string, values ...float64) scale {
	base, _, _ := strings.Cut(unit, " ")
	var scales []scale
	switch {
	case base == Seconds:
		scales = timeScales
	case base == Bytes:
		scales = byteScales
	case unit == PerSecond:
		return scale{1, " /s", false}
	case unit == Part:
		return scale{0.01, " %", false}
	case unit == CPUs:
		return scale{1, " CPU", false}
	default:
		return scale{1, "", false}
	}
	var largest float64
	for _, v := range values {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 {
		return scale{1, map[string]string{Seconds: " s", Bytes: " B"}[base], true} // zero fits every scale
	}
	chosen := scales[0]
	for _, s := range scales[1:] {
		if largest >= s.factor*0.9995 { // 0.9995, so that 999.6 ns is not printed as 1000 ns
			chosen = s
		}
	}
	if base == Bytes && strings.Contains(unit, " per ") {
		chosen.whole = false
	}
	return chosen
}

// maxDigits is the maximum number of significant digits of a value, however narrow its interval.
const maxDigits = 4

// digits returns the number of decimals for three significant digits.
func (s scale) digits(v float64) int { return s.atMost(3-1-magnitude(v/s.factor), v) }

// decimals returns the number of decimals that are meaningful: down to the leading digit of the interval's half-width.
// If the interval excludes 0, its ends are not rounded to 0, which would make it seem to include 0.
func (s scale) decimals(v, lo, hi float64) int {
	half := (hi - lo) / 2 / s.factor
	if !(half > 0) {
		return s.digits(v)
	}
	largest := max(math.Abs(v), math.Abs(lo), math.Abs(hi))
	wanted := s.atMost(min(-magnitude(half), maxDigits-1-magnitude(largest/s.factor)), v, lo, hi)
	for _, end := range []float64{lo, hi} {
		if lo*hi > 0 {
			wanted = max(wanted, min(-magnitude(2*end/s.factor), maxDecimals))
		}
	}
	return wanted
}

const maxDecimals = 9

// atMost limits a number of decimals to a sensible range. It returns 0 for scales without decimals, and for counts that
// are all whole.
func (s scale) atMost(decimals int, values ...float64) int {
	parts := slices.ContainsFunc(values, func(v float64) bool { return v != math.Trunc(v) })
	if s.whole || s.suffix == "" && !parts {
		return 0
	}
	return min(max(decimals, 0), maxDecimals)
}

func (s scale) number(v float64, decimals int, signed bool) string {
	text := strconv.FormatFloat(v/s.factor, 'f', decimals, 64)
	if strings.Trim(text, "-0.") == "" {
		return strings.TrimPrefix(text, "-") // zero has no sign
	}
	if signed && v > 0 {
		text = "+" + text
	}
	return text
}

// magnitude returns the power of ten of the leading digit; 0 for 0.
func magnitude(v float64) int {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return int(math.Floor(math.Log10(math.Abs(v)) + 1e-9))
}

// Thousands formats a whole number with separators between thousands.
func Thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Counted formats a number of things: 1 block, 2 blocks, 3 processes.
func Counted(n int, thing string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(thing, "s"), strings.HasSuffix(thing, "x"):
		thing += "es"
	default:
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// Wait formats a waiting time: "40 s", "3 min 05 s", "4 h 30 min".
func Wait(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	}
	if d >= 3*time.Hour {
		d = d.Round(time.Minute)
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	d = d.Round(5 * time.Second)
	return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
}
