package param

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
)

// Values holds the values of settings by name, in canonical form: durations in Go's format, bytes as a plain number. A
// setting without a default is absent unless it was given.
type Values map[string]string

// Defaults returns the default values of settings.
func Defaults(settings []Setting) Values {
	v := Values{}
	for _, s := range settings {
		if s.Default != "" {
			v[s.Name] = s.Default
		}
	}
	return v
}

// Find returns the setting with a name, and reports whether there is one.
func Find(settings []Setting, name string) (Setting, bool) {
	s := lists.Find(settings, func(s *Setting) bool { return s.Name == name })
	return known.Or(s, Setting{}), s != nil
}

// FirstOf returns the name of the first setting, apart from the allowed ones, whose value differs from its default;
// empty if there is none.
func (v Values) FirstOf(settings []Setting, allowed ...string) string {
	for _, s := range settings {
		if text, given := v[s.Name]; given && text != s.Default && !slices.Contains(allowed, s.Name) {
			return s.Name
		}
	}
	return ""
}

// Check checks values that came neither from a spec nor from a flag. Its error has the code fault.Usage.
func (v Values) Check(settings []Setting) error {
	for _, s := range settings {
		if text, ok := v[s.Name]; ok {
			if _, err := s.Canonical(text); err != nil {
				return fault.New(fault.Usage, "--"+s.Name, s.Hint(), "%s", err)
			}
		}
	}
	return nil
}

// Names returns the names of settings, in their order.
func Names(settings []Setting) []string {
	return lists.Map(settings, func(s Setting) string { return s.Name })
}

// Clone returns a copy, which is never nil.
func (v Values) Clone() Values {
	c := make(Values, len(v))
	maps.Copy(c, v)
	return c
}

// Args returns the values as flags, in the order of the settings.
func (v Values) Args(settings []Setting) []string {
	var args []string
	for _, s := range settings {
		if _, ok := v[s.Name]; !ok {
			continue
		}
		for _, value := range v.Texts(s.Name) {
			args = append(args, "--"+s.Name+"="+value)
		}
	}
	return args
}

// The typed accessors below return zero if the setting is not given. Given values are canonical and always parse.

// Float returns the value of a number, of a count or of bytes.
func (v Values) Float(name string) float64 {
	f, _ := strconv.ParseFloat(v[name], 64)
	return f
}

// Int returns the value of a count or of bytes.
func (v Values) Int(name string) int {
	n, _ := strconv.Atoi(v[name])
	return n
}

// Uint returns the value of a count that may be larger than an int, such as a seed.
func (v Values) Uint(name string) uint64 {
	n, _ := strconv.ParseUint(v[name], 10, 64)
	return n
}

// Texts returns the values of a text that may be repeated, in their order; nil if it was not given.
func (v Values) Texts(name string) []string {
	text, ok := v[name]
	if !ok {
		return nil
	}
	return strings.Split(text, separator)
}

// separator separates the values of a setting that may be repeated. It cannot occur in a text (Setting.Canonical).
const separator = "\n"

// Part returns the value of a part, as a fraction.
func (v Values) Part(name string) float64 {
	f, _ := strconv.ParseFloat(strings.TrimSuffix(v[name], "%"), 64)
	return f / 100
}

// Duration returns the value of a duration.
func (v Values) Duration(name string) time.Duration {
	d, _ := time.ParseDuration(v[name])
	return d
}

// On returns the value of a switch.
func (v Values) On(name string) bool { return v[name] == "true" }
