package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/param"
	"tare/internal/results/session"
	subject "tare/internal/workloads/subject/command"
)

// TestArmName: any program has a name that an arm can have.
func TestArmName(t *testing.T) {
	for program, want := range map[string]string{
		"haproxy": "haproxy", "/usr/bin/node_exporter": "node-exporter", "./Agent.v2": "agent-v2", "7z": "command-7z",
		"...": "command", "direct": "command-direct", "aa": "command-aa", "--": "command",
		strings.Repeat("long-", 20): "long-long-long-long-long-long-lo",
	} {
		if got := armName(program); got != want {
			t.Errorf("%s is called %q, not %q", program, got, want)
		}
	}
}

// TestTrySpec: whatever is tried makes an ordinary spec, which can be read again as it is recorded.
func TestTrySpec(t *testing.T) {
	old, err := filepath.Abs("old")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		flags    tryFlags
		argv     []string
		loads    []string
		baseline []string
	}{
		{"all workloads", tryFlags{}, []string{"sleep", "infinity"}, []string{"connections", "execs", "keepalive"}, nil},
		{"against another", tryFlags{load: "execs", against: `./old --its "it's quoted" {port} '|'`}, []string{"./new"},
			[]string{"execs"}, []string{old, "--its", "it's quoted", "{port}", "|"}},
		{"one workload", tryFlags{load: "execs"}, []string{"true"}, []string{"execs"}, nil},
		{"a load of another kind", tryFlags{load: "probe"}, []string{"sleep", "1"}, []string{"probe"}, nil},
		{"a neighbour as the application", tryFlags{app: "burn"}, []string{"sleep", "1"}, []string{"execs"}, nil},
		{"quotes and braces", tryFlags{load: "execs"},
			[]string{"bpftrace", "-e", `kprobe:x { printf("it's %d\n", pid); }`, "{port}"}, []string{"execs"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.flags.command = param.Values{}
			if err := c.flags.setCommands(c.argv); err != nil {
				t.Fatal(err)
			}
			chosen, err := c.flags.workloads()
			if err != nil {
				t.Fatal(err)
			}
			name := armName(c.argv[0])
			s, err := trySpec(name, c.flags, chosen)
			if err != nil {
				t.Fatal(err)
			}
			r, err := session.Flags{}.Record(s, []string{"tare"}, nil, record.Environment{Subjects: map[string]string{}})
			if err != nil {
				t.Fatal(err)
			}
			again, err := spec.Parse("run.json", r.Spec, featureNames())
			if err != nil {
				t.Fatalf("the spec in the record cannot be read: %v", err)
			}
			if got := again.Arms[name].Options["command"]; got != lineOf(c.argv, "") {
				t.Errorf("the command is %s", got)
			}
			if b := again.Baseline; (b != nil) != (c.baseline != nil) ||
				b != nil && b.Options["command"] != lineOf(c.baseline, "") {
				t.Errorf("the baseline is %+v", b)
			}
			for _, l := range c.loads {
				if again.Loads[l] == nil {
					t.Errorf("there is no load %s", l)
				}
			}
			for _, level := range again.Levels() {
				if at := again.At(level); len(at.Loads) != 1 {
					t.Errorf("at %v there are %d loads", level, len(at.Loads))
				}
			}
			if e := engine.Estimate(s); e > tryTime || s.Blocks < tryLeast || s.Blocks > tryBlocks {
				t.Errorf("%d blocks, about %v", s.Blocks, e)
			}
		})
	}
}

// TestSlowCommands: a command that takes long to start gets the fewest blocks that give intervals.
func TestSlowCommands(t *testing.T) {
	f := tryFlags{command: param.Values{"command": "x", "ready-after": "5s"}}
	chosen, err := f.workloads()
	if err != nil {
		t.Fatal(err)
	}
	s, err := trySpec("x", f, chosen)
	if err != nil || s.Blocks != tryLeast {
		t.Errorf("%d blocks, %v", s.Blocks, err)
	}
}

// TestRehearsed: if the start-up time of a command is unknown, the run has a warning.
func TestRehearsed(t *testing.T) {
	var f tryFlags
	f.rehearsed("agent", subject.Rehearsal{})
	f.rehearsed("agent", subject.Rehearsal{ReadyAfter: time.Second, Settled: true})
	f.rehearsed("the baseline", subject.Rehearsal{ReadyAfter: time.Second})
	w := f.run.warnings
	if len(w) != 1 || !strings.HasPrefix(w[0], "the baseline: started once by itself, its CPU time never settled") {
		t.Errorf("%q", w)
	}
}
