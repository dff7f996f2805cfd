// Package param declares settings as data. Each guest (an application, a load, a subject) declares its settings once,
// in its own package. The key in a spec, the flag on the command line, the default, the range, the errors and the
// documentation are all derived from that declaration.
package param

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/lib/text"
)

// Type is the type of a setting's value.
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

// Reach is how much the author of a text can make a machine do. For example, a node refuses specs from a coordinator
// if their texts reach further than the guests do by themselves (spec.CheckReach).
type Reach string

// The reaches. Numbers, switches and words have no reach: the guest defines what their values do.
const (
	ReachNothing Reach = "nothing" // the text selects one of the guest's options, or is only compared or passed on
	ReachCommand Reach = "command" // it is a command or part of one, or names the place from which a program is taken
	ReachFile    Reach = "file"    // it is the path of a file that is read, written or waited for
	ReachAddress Reach = "address" // it is an address to connect to
	ReachProcess Reach = "process" // it names a running process that is inspected
)

// Setting is one setting of a guest or of an experiment.
type Setting struct {
	Name    string   `json:"name"`
	Type    Type     `json:"type"`
	Default string   `json:"default,omitempty"` // canonical; if empty, the setting is passed on only if it is given
	Words   []string `json:"words,omitempty"`   // the allowed values of a word; for a number, words that are allowed as well
	Min     float64  `json:"min"`               // for counts, numbers, bytes, parts and (in seconds) durations
	Max     float64  `json:"max,omitempty"`     // likewise; 0 means no limit
	Doc     string   `json:"doc"`

	// Reach is required for texts: what their author can make the machine do. Known lists values that reach no further
	// than the default, such as names of programs that Tare itself looks for.
	Reach Reach    `json:"reach,omitempty"`
	Known []string `json:"known,omitempty"`

	// Phrase names the levels of a factor in sentences. Its keys are values of the setting. The entry for "" serves for
	// all other values; {} in it stands for the value. If Phrase is nil, levels are named by the setting.
	Phrase map[string]string `json:"phrase,omitempty"`

	// Many allows the flag of a text to be repeated: Values.Texts returns all values. Specs have no such settings.
	Many bool `json:"-"`
}

// Canonical checks a value as a user wrote it and returns its canonical form. The error continues a sentence that
// begins with the name of the setting.
func (s Setting) Canonical(raw string) (string, error) {
	raw = strings.TrimSpace(raw)
	switch s.Type {
	case TypeDuration:
		d, err := time.ParseDuration(raw)
		if err != nil {
			return "", fmt.Errorf("must be a duration with its unit, such as 300ms or 2s, not %q", text.Clip(raw))
		}
		return d.String(), s.inRange(d.Seconds(), d.String(), "s")
	case TypeCount:
		n, err := strconv.ParseInt(raw, 10, 64)
		if u, uerr := strconv.ParseUint(raw, 10, 64); err != nil && uerr == nil && s.Max > math.MaxInt64 {
			return strconv.FormatUint(u, 10), nil
		}
		if err != nil {
			return "", fmt.Errorf("must be a whole number, not %q", text.Clip(raw))
		}
		return strconv.FormatInt(n, 10), s.inRange(float64(n), raw, "")
	case TypeNumber:
		if slices.Contains(s.Words, raw) {
			return raw, nil
		}
		f, err := strconv.ParseFloat(raw, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			words := strings.Join(append([]string{"a number"}, s.Words...), " or ")
			return "", fmt.Errorf("must be %s, not %q%s", words, text.Clip(raw), text.DidYouMean(raw, s.Words))
		}
		return Number(f), s.inRange(f, raw, "")
	case TypePart:
		digits, percent := strings.CutSuffix(raw, "%")
		f, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return "", fmt.Errorf("must be a part, such as 5%% or 0.05, not %q", text.Clip(raw))
		}
		if !percent {
			f *= 100
		}
		f = math.Round(1e9*f) / 1e9 // so that 0.07 is 7%, not 7.000000000000001%
		return Number(f) + "%", s.inRange(f/100, raw, "")
	case TypeBytes:
		n, err := parseBytes(raw)
		if err != nil {
			return "", err
		}
		return strconv.FormatUint(n, 10), s.inRange(float64(n), raw, "")
	case TypeSwitch:
		if raw != "true" && raw != "false" {
			return "", fmt.Errorf("must be true or false, not %q", text.Clip(raw))
		}
		return raw, nil
	case TypeWord:
		if !slices.Contains(s.Words, raw) {
			return "", fmt.Errorf("must be one of %s, not %q%s", s.Accepts(), text.Clip(raw), text.DidYouMean(raw, s.Words))
		}
		return raw, nil
	case TypeText:
		if strings.ContainsAny(raw, "\n\r\x00") {
			return "", fmt.Errorf("must be one line of text")
		}
		return raw, nil
	}
	return "", fmt.Errorf("has the unknown type %q", s.Type)
}

func (s Setting) inRange(v float64, raw, unit string) error {
	if v < s.Min {
		return fmt.Errorf("must be at least %s%s, not %s", s.show(s.Min), unit, text.Clip(raw))
	}
	if s.Max > 0 && v > s.Max {
		return fmt.Errorf("must be at most %s%s, not %s", s.show(s.Max), unit, text.Clip(raw))
	}
	return nil
}

// Reaches returns how far a value of the setting reaches. A text without a declared reach is treated as a command.
func (s Setting) Reaches(value string) Reach {
	switch {
	case s.Type != TypeText || value == "" || value == s.Default || slices.Contains(s.Known, value):
		return ReachNothing
	case s.Reach == "":
		return ReachCommand
	}
	return s.Reach
}

// show formats a bound as a user would write it, without the unit of durations.
func (s Setting) show(bound float64) string {
	switch s.Type {
	case TypeBytes:
		return showBytes(bound)
	case TypePart:
		return Part(bound)
	}
	return Number(bound)
}

// Accepts describes the allowed values without their range: their type, the allowed words, or both.
func (s Setting) Accepts() string {
	switch {
	case s.Type == TypeWord:
		return strings.Join(s.Words, ", ")
	case len(s.Words) > 0:
		return string(s.Type) + " or " + strings.Join(s.Words, ", ")
	}
	return string(s.Type)
}

// Range describes the bounds of the value; empty if it has none.
func (s Setting) Range() string {
	unit := ""
	switch s.Type {
	case TypeDuration:
		unit = "s"
	case TypeCount, TypeNumber, TypePart, TypeBytes:
	default:
		return ""
	}
	if s.Max == 0 || s.Max > math.MaxInt64 {
		return "at least " + s.show(s.Min) + unit
	}
	return s.show(s.Min) + unit + " to " + s.show(s.Max) + unit
}

// Hint describes the setting and its allowed values, for a user who gave an invalid one.
func (s Setting) Hint() string {
	text := fmt.Sprintf("%q is %s", s.Name, s.Doc)
	if s.Type != TypeWord && len(s.Words) > 0 {
		text += "; " + s.Accepts()
	}
	if r := s.Range(); r != "" {
		text += "; " + r
	}
	return text
}

// showBytes formats a number of bytes as a spec would write it.
func showBytes(n float64) string {
	for _, u := range []struct {
		suffix string
		bytes  float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && math.Mod(n, u.bytes) == 0 {
			return Number(n/u.bytes) + u.suffix
		}
	}
	return Number(n)
}

// Part formats a fraction as a percentage.
func Part(f float64) string { return Number(100*f) + "%" }

// Number formats a number with as many digits as it needs.
func Number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// byteUnits are the units that a spec may use, decimal and binary. parseBytes takes the first suffix that matches, so
// the longer ones come first.
var byteUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1},
}

func parseBytes(raw string) (uint64, error) {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(raw, u.suffix)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if b := f * u.bytes; err == nil && b >= 0 && b < 1<<62 && b == math.Trunc(b) {
			return uint64(b), nil
		}
		break
	}
	return 0, fmt.Errorf("must be a number of bytes, such as 128, 64KiB or 10MB, not %q", text.Clip(raw))
}
