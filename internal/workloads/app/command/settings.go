package command

import (
	"errors"
	"fmt"
	"slices"

	"tare/internal/experiment/process"
	"tare/internal/lib/param"
)

// observe is the setting that names a running program.
const observe = "observe"

// Settings are the settings of any command, and the setting for observing a program instead of starting one.
var Settings = append(slices.Clone(process.Settings), param.Setting{
	Name: observe, Type: param.TypeText, Reach: param.ReachProcess,
	Doc: "instead of `command`: a running program, as `pid:1234`, `cgroup:/path`, `unit:NAME` or `container:ID`; it is " +
		"never started, moved, limited or stopped; needs `address`",
})

// ofStarting are the settings that apply only if a command is started.
var ofStarting = []string{
	"command", "env", "dir", "ready-port", "ready-line", "ready-http", "ready-file", "ready-after",
}

// check checks combinations of settings. Its error continues a sentence that begins with the part's place in the spec.
func check(v param.Values) error {
	_, starts := v["command"]
	_, observes := v[observe]
	switch {
	case starts && observes:
		return fmt.Errorf(`has a "command" and %q: it is either started or runs already`, observe)
	case observes:
		return checkObserved(v)
	case !starts:
		return fmt.Errorf(`needs a "command", the command line that starts it, or %q, a running program`, observe)
	}
	_, err := process.OptionsOf(v)
	return err
}

func checkObserved(v param.Values) error {
	for _, name := range ofStarting {
		if _, set := v[name]; set {
			return fmt.Errorf("%q cannot be combined with %q, which names a running program", name, observe)
		}
	}
	if v["address"] == "" {
		return fmt.Errorf(`needs an "address", the host:port at which the observed program is reached`)
	}
	if v.Float("count") > 1 {
		return errors.New(`an observed application exists once: leave out the "count"`)
	}
	_, err := process.ParseTarget(v[observe])
	return err
}
