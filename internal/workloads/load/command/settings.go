package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/process"
	"tare/internal/lib/param"
	"tare/internal/workloads/load/command/tool"
)

// The settings of the load in addition to those of a command.
const (
	settingTool  = "tool"
	settingDrain = "drain"
	settingIn    = "inside"
	noTool       = "none"
)

// shared are the settings of commands that apply to a load, which has neither a readiness check nor an address.
var shared = []string{"command", "env", "dir", "stop-signal", "stop-time"}

// Settings are the settings of the load in specs.
var Settings = append(fromCommand(shared),
	param.Setting{Name: settingTool, Type: param.TypeWord, Words: append(tool.Names(), noTool),
		Doc: "tool whose output is read; when left out, by the program's name; `none`: measured from outside only"},
	param.Setting{Name: settingDrain, Type: param.TypeDuration, Default: "10s", Max: 3600,
		Doc: "time for its output after it should have ended; then it is asked to end"},
	param.Setting{Name: settingIn, Type: param.TypeSwitch, Default: "false",
		Doc: "whether it runs inside the sandbox, in arms that have one; false: beside it"},
)

func fromCommand(names []string) []param.Setting {
	var settings []param.Setting
	for _, name := range names {
		if s, ok := param.Find(process.Settings, name); ok {
			settings = append(settings, s)
		}
	}
	return settings
}

// options holds the parsed settings of a load.
type options struct {
	command process.Command
	tool    string // the tool whose output is parsed; empty: none
}

// optionsOf reads settings. Its error continues a sentence that begins with the part's place in the spec.
func optionsOf(v param.Values) (o options, err error) {
	if _, ok := v["command"]; !ok {
		return o, errors.New(`needs a "command", the command line that makes the load`)
	}
	if o.command, err = process.OptionsOf(v); err != nil {
		return o, err
	}
	switch name, set := v[settingTool]; {
	case !set:
		o.tool = tool.Detect(o.command.Argv)
	case name != noTool:
		o.tool = name
	}
	o.command.Finishes = true
	if o.tool != "" {
		o.command.Capture = tool.MaxBytes
	}
	return o, nil
}

// aimed are the placeholders for the application to which a load connects.
var aimed = []string{"{address}", "{host}", "{port}"}

// checkAim refuses a command line with such placeholders if the load does not connect to an application.
func checkAim(o options, to string) error {
	if to != "" {
		return nil
	}
	for _, text := range slices.Concat(o.command.Argv, o.command.Env, []string{o.command.Dir}) {
		for _, p := range aimed {
			if strings.Contains(text, p) {
				return fmt.Errorf(`its command has %s, and it goes to no application: write to: and the name of one`, p)
			}
		}
	}
	return nil
}
