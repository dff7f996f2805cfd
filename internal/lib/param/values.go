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

// Values are the values of settings by name, in canonical form: durations as Go prints them, bytes as a plain number.
// A setting without a default is absent unless it was given.
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

// Find is the setting of a name.
func Find(settings []Setting, name string) (Setting, bool) {
	s := lists.Find(settings, func(s *Setting) bool { return s.Name == name })
	return known.Or(s, Setting{}), s != nil
}

// FirstOf is the name of the first of some settings that has another value than its default, save those that are
// allowed; empty where all have their defaults.
func (v Values) FirstOf(settings []Setting, allowed ...string) string {
	for _, s := range settings {
		if text, given := v[s.Name]; given && text != s.Default && !slices.Contains(allowed, s.Name) {
			return s.Name
		}
	}
	return ""
}

// Check checks the values that are set, if they came neither from a spec nor from a flag. Its error has the code
// fault.Usage.
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

// Names are the names of settings, in their order.
func Names(settings []Setting) []string {
	return lists.Map(settings, func(s Setting) string { return s.Name })
}

// Clone is a copy, never nil.
func (v Values) Clone() Values {
	c := make(Values, len(v))
	maps.Copy(c, v)
	return c
}

// Args are the values as flags, in the order of the settings.
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

// The typed values below are zero when the setting is not given. Values are canonical, so nothing else fails to parse.

// Float is the value of a number, a count or of bytes.
func (v Values) Float(name string) float64 {
	f, _ := strconv.ParseFloat(v[name], 64)
	return f
}

// Int is the value of a count or of bytes.
func (v Values) Int(name string) int {
	n, _ := strconv.Atoi(v[name])
	return n
}

// Uint is the value of a count that may be larger than an int, such as a seed.
func (v Values) Uint(name string) uint64 {
	n, _ := strconv.ParseUint(v[name], 10, 64)
	return n
}

// Texts are the values of a text that may be given many times, in their order; none where it was not given.
func (v Values) Texts(name string) []string {
	text, ok := v[name]
	if !ok {
		return nil
	}
	return strings.Split(text, separator)
}

// separator stands between the values of a setting that may be given many times. No text has it (Setting.Canonical).
const separator = "\n"

// Part is the value of a part, as a fraction.
func (v Values) Part(name string) float64 {
	f, _ := strconv.ParseFloat(strings.TrimSuffix(v[name], "%"), 64)
	return f / 100
}

// Duration is the value of a duration.
func (v Values) Duration(name string) time.Duration {
	d, _ := time.ParseDuration(v[name])
	return d
}

// On is the value of a switch.
func (v Values) On(name string) bool { return v[name] == "true" }
