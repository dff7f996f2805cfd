package engine

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
)

// reachHead is a spec to which parts are added.
const reachHead = "name: x\nquestion: Q?\napplications: {server: {kind: http}}\n" +
	"loads: {client: {kind: http, to: server, rate: 10}}\n"

// reachCases are specs, and their settings that reach further than guests do by themselves.
var reachCases = []struct{ name, spec, want string }{
	{"nothing", reachHead, ""},
	{"known programs", reachHead + "arms: {a: {subject: sandbox}, b: {subject: sandbox, runtime: crun}, c: {subject: " +
		"haproxy}}\n", ""},
	{"a command as a subject", reachHead + "arms: {a: {subject: command, command: touch /x}}\n",
		"arms.a.command (a command)"},
	{"tare itself by its template", reachHead + "arms: {a: {subject: command, command: '{self} clean'}}\n",
		"arms.a.command (a command)"},
	{"a command as the baseline", reachHead + "baseline: {subject: command, command: touch /x, env: A=b}\n",
		"baseline.command (a command), baseline.env (a command)"},
	{"a tracer that is a command", "name: x\nquestion: Q?\nloads: {storm: {kind: exec}}\n" +
		"arms: {a: {subject: command, command: t, lines: x, version: rm -rf /}}\n",
		"arms.a.command (a command), arms.a.version (a command)"},
	{"a command as an application and a load", "name: x\nquestion: Q?\n" +
		"applications: {s: {kind: command, command: sh -c x, ready-http: 'http://127.0.0.1:1/', ready-file: /etc/shadow}}\n" +
		"loads: {l: {kind: command, command: wrk, dir: /root}}\n",
		"applications.s.command (a command), applications.s.ready-file (a file), " +
			"applications.s.ready-http (an address), loads.l.command (a command), loads.l.dir (a file)"},
	{"what runs already", "name: x\nquestion: Q?\n" +
		"applications: {s: {kind: command, observe: 'pid:1', address: '192.0.2.1:80'}}\n" +
		"loads: {l: {kind: http, to: s, rate: 10}}\n",
		"applications.s.address (an address), applications.s.observe (a process)"},
	{"a runtime by its path", reachHead + "arms: {a: {subject: sandbox, runtime: /tmp/runc}}\n",
		"arms.a.runtime (a command)"},
	{"a runtime by an unknown name", reachHead + "arms: {a: {subject: sandbox, runtime: rm}}\n",
		"arms.a.runtime (a command)"},
	{"a proxy's program", reachHead + "arms: {a: {subject: haproxy, program: /tmp/x}}\n", "arms.a.program (a command)"},
	{"a tracer's objects and image", "name: x\nquestion: Q?\nloads: {storm: {kind: exec}}\n" +
		"arms: {a: {subject: tetragon, lib: /tmp}, b: {subject: ig, image: evil.example/x}}\n",
		"arms.a.lib (a command), arms.b.image (a command)"},
	{"a directory", "name: x\nquestion: Q?\nloads: {w: {kind: write, rate: 10, directory: /etc}}\n",
		"loads.w.directory (a file)"},
	{"by a factor", "name: x\nquestion: Q?\nloads: {w: {kind: write, rate: 10}}\nfactors: {directory: [/etc, /tmp]}\n",
		"loads.w.directory (a file)"},
	{"by a case of a factor", "name: x\nquestion: Q?\nloads: {w: {kind: write, rate: 10}}\n" +
		"factors: {where: {here: {rate: 20}, there: {directory: /etc}}}\n", "loads.w.directory (a file)"},
	{"by a variant", "name: x\nquestion: Q?\nloads: {w: {kind: write, rate: 10}}\n" +
		"arms: {v: {subject: variant, set: 'w.directory=/etc'}}\n", "loads.w.directory (a file)"},
	{"by a variant for a pattern", "name: x\nquestion: Q?\nloads: {w: {kind: write, rate: 10}}\n" +
		"arms: {v: {subject: variant, set: 'loads.*.directory=/etc'}}\n", "loads.w.directory (a file)"},
}

// TestReaches: every setting of a spec that reaches further than guests do is found, wherever the spec sets it, and a
// node that does not allow it does nothing for such a trial.
func TestReaches(t *testing.T) {
	errReached := errors.New("the machine was asked for")
	for _, c := range reachCases {
		t.Run(c.name, func(t *testing.T) {
			s := mustParse(t, c.spec)
			err := s.CheckReach("n1")
			if c.want == "" && err != nil || c.want != "" && (fault.CodeOf(err) != fault.Usage ||
				!strings.HasSuffix(err.Error(), ": "+c.want) || !strings.Contains(fault.HintOf(err), "--allow-commands")) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			s.Factors = nil
			if len(s.Reaches()) == 0 {
				return // allowed, or only at the levels of a factor
			}
			told, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(nodeJob{Spec: told, Planned: record.PlannedTrial{Arm: record.Direct}})
			if err != nil {
				t.Fatal(err)
			}
			for _, allow := range []bool{false, true} {
				a := NodeAgent{Name: "n1", Dir: t.TempDir(), AllowCommands: allow,
					Machine: func(*spec.Spec) (Machine, error) { return Machine{}, errReached }}
				_, err := a.Run(t.Context(), cluster.Job{Data: data}, func(context.Context) (int64, error) { return 0, nil })
				if refused := err != nil && strings.HasSuffix(err.Error(), c.want); refused == allow ||
					errors.Is(err, errReached) != allow {
					t.Errorf("allowed: %v; got %v", allow, err)
				}
			}
		})
	}
}

// TestNodeRefuses: a node refuses trials that no genuine coordinator sends, before it does anything for them.
func TestNodeRefuses(t *testing.T) {
	for _, c := range []struct {
		name, spec string
		change     func(*cluster.Job, *nodeJob)
		want       string
	}{
		{"no job", "", func(j *cluster.Job, _ *nodeJob) { j.Data = json.RawMessage(`[]`) }, "decoding the trial"},
		{"a spec that is none", `{"name": 7}`, nil, "the coordinator's spec"},
		{"an unknown arm", reachHead, func(_ *cluster.Job, j *nodeJob) { j.Planned.Arm = "x/../y" },
			"which its spec does not have"},
		{"a trial before the first", reachHead, func(_ *cluster.Job, j *nodeJob) { j.Planned.Index = -1 },
			"there is no trial -1"},
		{"a trial after the last", reachHead, func(_ *cluster.Job, j *nodeJob) { j.Planned.Index = 1 << 40 },
			"there is no trial"},
		{"factors", reachHead + "factors: {rate: [1, 2]}\n", nil, "has factors or nodes"},
		{"nodes of its own", reachHead + "nodes: 5\n", nil, "has factors or nodes"},
		{"a negative share", reachHead, func(j *cluster.Job, _ *nodeJob) { j.Share.CPUs = -1 }, "no trial can have -1 CPUs"},
		{"a huge share", reachHead, func(j *cluster.Job, _ *nodeJob) { j.Share.CPUs = 1e300 },
			"no trial can have 1e+300 CPUs"},
		{"a huge weight", reachHead, func(j *cluster.Job, _ *nodeJob) { j.Share.Weight = 1e9 }, "with a weight of 1e+09"},
		{"blocks without end", reachHead + "blocks: 9999999\n", nil, "at most"},
		{"an hour and more", reachHead + "duration: 999h\n", nil, "at most"},
		{"a rate beyond all bounds", strings.Replace(reachHead, "rate: 10", "rate: 1e300", 1), nil, "at most"},
		{"a name that is a path", strings.Replace(reachHead, "server:", "../../etc:", 1), nil, "small letters"},
		{"a name with escapes", strings.Replace(reachHead, "server:", `"\e[2J":`, 1), nil, "small letters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := nodeJob{Spec: json.RawMessage("null"), Planned: record.PlannedTrial{Arm: record.Direct}}
			if strings.HasPrefix(c.spec, "{") {
				j.Spec = json.RawMessage(c.spec)
			} else if s, err := spec.Parse("test", []byte(c.spec), nil); err == nil {
				j.Spec, _ = json.Marshal(s)
			} else if c.change == nil { // the spec is already rejected by the parser
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
				return
			}
			job := cluster.Job{}
			if c.change != nil {
				c.change(&job, &j)
			}
			if job.Data == nil {
				job.Data, _ = json.Marshal(j)
			}
			a := NodeAgent{Name: "n1", Dir: t.TempDir(), AllowCommands: true, Machine: func(*spec.Spec) (Machine, error) {
				t.Error("the machine was asked for")
				return Machine{}, errors.New("no machine")
			}}
			if _, err := a.Run(t.Context(), job, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
