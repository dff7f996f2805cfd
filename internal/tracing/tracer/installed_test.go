package tracer

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"tare/experiments"
	"tare/internal/lib/param"
)

// installedEvents are events of the tracers of ready-made experiments, each a line of a file in testdata/installed:
//
//   - falco: github.com/falcosecurity/falco-website, content/en/docs/concepts/outputs/channels.md
//   - inspektor-gadget: github.com/inspektor-gadget/inspektor-gadget/issues/4094, printed by its own test
//   - tetragon: github.com/cilium/tetragon, docs/content/en/docs/concepts/events.md, as one line
//   - exectrace: as Tare's own tracer prints them
//
// Such an event is none of the load. With changes, in pairs of an old and a new text, it is one.
var installedEvents = map[string]struct {
	load   [][]string // each makes an event of the load
	others [][]string // each makes another that looks like one
}{
	"exectrace": {
		load:   [][]string{{`["curl","https://tare.example"]`, `["tare-exec","0.12345"]`}},
		others: [][]string{{`["curl","https://tare.example"]`, `["tare-exec-worker","0"]`}},
	},
	"falco": {
		load: [][]string{{"Terminal shell in container", "tare exec"}},
		others: [][]string{
			{"Terminal shell in container", "Fileless execution via memfd_create", "sh -c clear", "tare-exec 0.12345"},
			{"Terminal shell in container", "Falco internal: syscall event drop"},
			{"cmdline=sh -c clear;", `cmdline=echo \"rule\":\"tare exec\"`},
		},
	},
	"inspektor-gadget": {
		load: [][]string{
			{"/usr/bin/as --64 -o /tmp/cctBpunY.o /tmp/ccsQkHUp.s", "tare-exec\u00a00.12345"},
			{"/usr/bin/as --64 -o /tmp/cctBpunY.o /tmp/ccsQkHUp.s", "tare-exec 11.0"}, // of earlier versions
		},
		others: [][]string{
			{"/usr/bin/as --64 -o /tmp/cctBpunY.o /tmp/ccsQkHUp.s", "tare-exec-worker\u00a00"},
			{"/usr/bin/as --64", `/bin/echo \"args\":\"tare-exec 0.1\"`},
		},
	},
	"tetragon": {
		load: [][]string{
			{`"name":"xwing"`, `"name":"tare-x3k5a2-7-execs-2"`},
			{`"name":"xwing"`, `"name":"tare-x3k5a2-7-again-1-execs"`},
		},
		others: [][]string{
			{"process_exec", "process_exit", `"name":"xwing"`, `"name":"tare-x3k5a2-7-execs-2"`},
			{`"name":"xwing"`, `"name":"tare-x3k5a2-7-server"`},
		},
	},
}

// TestInstalledLines: in ready-made experiments the setting lines matches the events of the load, and no others.
func TestInstalledLines(t *testing.T) {
	seen := 0
	for _, name := range experiments.ClusterNames() {
		_, text, _ := experiments.File(name)
		var s struct{ Arms map[string]param.Values }
		if err := yaml.Unmarshal(text, &s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for arm, v := range s.Arms {
			if v["subject"] != (asInstalled{}).About().Name {
				continue
			}
			seen++
			marks, err := asInstalled{}.Marks(v)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			line, err := os.ReadFile("testdata/installed/" + arm + ".json")
			if err != nil {
				t.Fatal(err)
			}
			line = bytes.TrimSuffix(line, newline)
			check := func(changes []string, want bool) {
				event := strings.NewReplacer(changes...).Replace(string(line))
				if len(changes) > 0 && event == string(line) {
					t.Fatalf("%s: nothing to replace: %q", name, changes)
				}
				if got := marks.Logs.Event([]byte(event)); got != want {
					t.Errorf("%s: is %t, want %t: %s", name, got, want, event)
				}
			}
			check(nil, false)
			for _, changes := range installedEvents[arm].load {
				check(changes, true)
			}
			for _, changes := range installedEvents[arm].others {
				check(changes, false)
			}
		}
	}
	if seen != len(installedEvents) {
		t.Errorf("%d tracers in experiments, want %d", seen, len(installedEvents))
	}
}
