package experiment

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Type is what a knob's value is.
type Type string

// The types, and how a spec writes their values.
const (
	TypeDuration Type = "duration" // 300ms, 2s, 0s
	TypeCount    Type = "count"    // a whole number
	TypeNumber   Type = "number"   // any decimal number
	TypePart     Type = "part"     // 5%, or 0.05
	TypeBytes    Type = "bytes"    // 128, 64KiB, 10MB
	TypeSwitch   Type = "switch"   // true or false
	TypeWord     Type = "word"     // one of Words
	TypeText     Type = "text"     // free text on one line
)

// Knob is one setting of a kind of application, load or subject. The vocabulary of specs is this data: parsing, defaults, factors
// and the commands that start processes are all made from it.
type Knob struct {
	Name    string
	Type    Type
	Default string   // empty: passed on only when the spec gives it
	Words   []string // those that it may be; a number may be these as well
	Min     float64  // of counts, numbers, bytes and (in seconds) durations
	Max     float64  // likewise; 0 is no limit
	Doc     string

	// Phrase is how its levels read in a sentence where it is a factor, by value; of "": any other, which stands in
	// the place of {}. Nil: they are given by name.
	Phrase map[string]string
}

// Options are the values of knobs by name, in canonical form: durations as Go prints them, bytes as a plain number.
type Options map[string]string

// Canonical checks a value as a person wrote it and gives its canonical form. The error reads on after the knob's name.
func (k Knob) Canonical(text string) (string, error) {
	text = strings.TrimSpace(text)
	switch k.Type {
	case TypeDuration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return "", fmt.Errorf("must be a duration with its unit, such as 300ms or 2s, not %q", clip(text))
		}
		return d.String(), k.inRange(d.Seconds(), d.String(), "s")
	case TypeCount:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", fmt.Errorf("must be a whole number, not %q", clip(text))
		}
		return strconv.FormatInt(n, 10), k.inRange(float64(n), text, "")
	case TypeNumber:
		if slices.Contains(k.Words, text) {
			return text, nil
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return "", fmt.Errorf("must be %s, not %q%s", strings.Join(append([]string{"a number"}, k.Words...), " or "), clip(text), didYouMean(text, k.Words))
		}
		return number(f), k.inRange(f, text, "")
	case TypePart:
		digits, percent := strings.CutSuffix(text, "%")
		f, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return "", fmt.Errorf("must be a part, such as 5%% or 0.05, not %q", clip(text))
		}
		if !percent {
			f *= 100
		}
		f = math.Round(1e9*f) / 1e9 // 0.07 is 7%, not 7.000000000000001%
		return number(f) + "%", k.inRange(f/100, text, "")
	case TypeBytes:
		n, err := parseBytes(text)
		if err != nil {
			return "", err
		}
		return strconv.FormatUint(n, 10), k.inRange(float64(n), text, "")
	case TypeSwitch:
		if text != "true" && text != "false" {
			return "", fmt.Errorf("must be true or false, not %q", clip(text))
		}
		return text, nil
	case TypeWord:
		if !slices.Contains(k.Words, text) {
			return "", fmt.Errorf("must be one of %s, not %q%s", strings.Join(k.Words, ", "), clip(text), didYouMean(text, k.Words))
		}
		return text, nil
	case TypeText:
		if strings.ContainsAny(text, "\n\r\x00") {
			return "", fmt.Errorf("must be one line of text")
		}
		return text, nil
	}
	return "", fmt.Errorf("has the unknown type %q", k.Type)
}

func (k Knob) inRange(v float64, text, unit string) error {
	show := number
	switch k.Type {
	case TypeBytes:
		show = showBytes
	case TypePart:
		show = showPart
	}
	if v < k.Min {
		return fmt.Errorf("must be at least %s%s, not %s", show(k.Min), unit, clip(text))
	}
	if k.Max > 0 && v > k.Max {
		return fmt.Errorf("must be at most %s%s, not %s", show(k.Max), unit, clip(text))
	}
	return nil
}

// mend says what the knob is and what it may be.
func (k Knob) mend() string {
	text := fmt.Sprintf("%q is %s", k.Name, k.Doc)
	show, unit := number, ""
	switch k.Type {
	case TypeBytes:
		show = showBytes
	case TypePart:
		show = showPart
	case TypeDuration:
		unit = "s"
	case TypeCount, TypeNumber:
		if len(k.Words) > 0 {
			text += "; " + strings.Join(k.Words, ", ") + " or a number"
		}
	default:
		return text
	}
	if k.Min > 0 || k.Max == 0 {
		text += "; at least " + show(k.Min) + unit
	}
	if k.Max > 0 {
		text += "; at most " + show(k.Max) + unit
	}
	return text
}

// showBytes is a number of bytes as a spec writes it.
func showBytes(n float64) string {
	for _, u := range []struct {
		suffix string
		bytes  float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && math.Mod(n, u.bytes) == 0 {
			return number(n/u.bytes) + u.suffix
		}
	}
	return number(n)
}

func showPart(f float64) string { return number(100*f) + "%" }

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// byteUnits are decimal and binary multiples; what a spec says is what is meant.
var byteUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1},
}

func parseBytes(text string) (uint64, error) {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if b := f * u.bytes; err == nil && b >= 0 && b < 1<<62 && b == math.Trunc(b) {
			return uint64(b), nil
		}
		break
	}
	return 0, fmt.Errorf("must be a number of bytes, such as 128, 64KiB or 10MB, not %q", clip(text))
}

func (o Options) clone() Options {
	c := make(Options, len(o))
	for k, v := range o {
		c[k] = v
	}
	return c
}

// float is the value of a number, count or bytes; 0 when it is not set.
func (o Options) float(name string) float64 {
	f, _ := strconv.ParseFloat(o[name], 64) // canonical, so only an unset option fails
	return f
}

// part is the value of a part; 0 when it is not set.
func (o Options) part(name string) float64 {
	f, _ := strconv.ParseFloat(strings.TrimSuffix(o[name], "%"), 64) // canonical, so only an unset option fails
	return f / 100
}

// args are the options as flags, in the order of the knobs.
func (o Options) args(knobs []Knob) []string {
	var args []string
	for _, k := range knobs {
		if v, ok := o[k.Name]; ok {
			args = append(args, "--"+k.Name+"="+v)
		}
	}
	return args
}

// clip keeps a hostile value from filling the message.
func clip(s string) string {
	const most = 40
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// duration is the value of a duration; 0 when it is not set.
func (o Options) duration(name string) time.Duration {
	d, _ := time.ParseDuration(o[name]) // canonical, so only an unset option fails
	return d
}
