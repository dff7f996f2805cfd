package tracer

import (
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
	execload "tare/internal/tracing/exec"
	"tare/internal/workloads/subject/command"
)

// TestCheckCommand: which settings can be combined. No setting is silently ignored.
func TestCheckCommand(t *testing.T) {
	for _, c := range []struct {
		name string
		set  param.Values
		says string // empty: valid
	}{
		{"a command", param.Values{"command": "sleep infinity", "ready-after": "1s", "stop-signal": "INT"}, ""},
		{"a tracer", param.Values{"command": "mine", "lines": "", "signal": "INT", "ready-after": "1s"}, ""},
		{"observed", param.Values{"observe": "unit:nginx.service"}, ""},
		{"nothing", param.Values{}, `needs a "command"`},
		{"no program", param.Values{"command": "''"}, "names no program"},
		{"a shell's work", param.Values{"command": "a | b"}, "which only a shell understands"},
		{"a setting of tracers", param.Values{"command": "a", "ready": "^x"}, `has "ready", which is of a command whose`},
		{"a drain", param.Values{"command": "a", "drain": "5s"}, `has "drain", which is of a command whose`},
		{"a tracer with a setting of commands", param.Values{"command": "a", "lines": "", "ready-line": "x"},
			`has "ready-line", and its events are counted`},
		{"a tracer with another signal", param.Values{"command": "a", "lines": "", "stop-signal": "INT"},
			`has "stop-signal", and its events are counted`},
		{"a tracer without a page", param.Values{"command": "a", "prometheus": "a"}, `needs a "url"`},
		{"observed and started", param.Values{"observe": "pid:1", "command": "a"}, `has "observe" and "command"`},
		{"observed and waited for", param.Values{"observe": "pid:1", "ready-after": "1s"}, `has "observe" and "ready-after"`},
		{"observed and optional", param.Values{"observe": "pid:1", "optional": "true"},
			`has "observe" and "optional"`},
		{"observed, with its version", param.Values{"observe": "pid:1", "version": "a --version"}, ""},
		{"no such thing", param.Values{"observe": "pdi:1"}, "not a process, control group, unit or container"},
	} {
		o := param.Defaults(commandLine.About().Settings)
		for k, v := range c.set {
			o[k] = v
		}
		err := commandLine.Check(o)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// TestVersionOfObserved: the version of what runs already is what its command prints.
func TestVersionOfObserved(t *testing.T) {
	for line, want := range map[string]string{"": "", "echo agent 1.2": "agent 1.2"} {
		o := param.Values{"observe": "unit:agent.service", "version": line}
		if name, version := commandLine.Version(t.Context(), o, "own"); name != "unit:agent.service" || version != want {
			t.Errorf("%q: %s %q, want %q", line, name, version, want)
		}
	}
}

// TestCheckCommandSetup: only a counted command needs a load that makes events, and a program that is only observed
// cannot be limited.
func TestCheckCommandSetup(t *testing.T) {
	events := map[string]*kind.Part{"execs": {Kind: kind.Find(kind.Load, execload.Name)}}
	limits := param.Values{"cpus": "1"}
	for _, c := range []struct {
		name  string
		part  kind.Part
		loads map[string]*kind.Part
		says  string
	}{
		{"a command", kind.Part{Options: param.Values{"command": "a"}, Limits: limits}, nil, ""},
		{"a tracer", kind.Part{Options: param.Values{"command": "a", "lines": ""}}, events, ""},
		{"a tracer of nothing", kind.Part{Options: param.Values{"command": "a", "lines": ""}}, nil,
			"needs something to trace"},
		{"observed", kind.Part{Options: param.Values{"observe": "pid:1"}}, nil, ""},
		{"observed with limits", kind.Part{Options: param.Values{"observe": "pid:1"}, Limits: limits}, nil, `has "limits"`},
	} {
		err := commandLine.CheckSetup(&kind.Setup{Loads: c.loads}, "arms.a", &c.part)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// TestCommandMemory: a command has the metric rss_bytes even if its events are not counted, and the baseline has the
// value 0. An experiment without a command does not have the metric.
func TestCommandMemory(t *testing.T) {
	found := &command.Evidence{}
	found.RSS, found.RSSPeak = 5<<20, 7<<20
	with := kind.Setup{Arms: map[string]*kind.Part{"mine": {Kind: commandLine}}}
	for _, c := range []struct {
		name  string
		m     measured.Measured
		value float64
		told  bool
	}{
		{"its arm", measured.Measured{
			Setup: &with, Subject: &kind.Objects{}, Evidence: map[string]any{command.Name: found},
		}, 5 << 20, true},
		{"the baseline", measured.Measured{Setup: &with}, 0, true},
		{"before a look", measured.Measured{Setup: &with, Subject: &kind.Objects{}}, 0, false},
		{"an experiment of others", measured.Measured{Setup: &kind.Setup{}}, 0, false},
	} {
		c.m.Ledger = &ledger.Ledger{}
		values := c.m.Values()
		if v, told := values["rss_bytes"]; v != c.value || told != c.told {
			t.Errorf("%s: rss_bytes is %v (%v), want %v (%v)", c.name, v, told, c.value, c.told)
		}
		if _, told := values["memory_peak_bytes"]; told != (c.name == "the baseline") {
			t.Errorf("%s: memory_peak_bytes reported: %v, and it is not known", c.name, told)
		}
	}
}
