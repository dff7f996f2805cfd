package spec

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

const copiesSpec = `name: many
question: How many?
applications:
  app: {kind: http, count: 3, limits: {cpus: 0.9, memory: 96MiB, pin: 2}}
  lone: {kind: http}
loads:
  client: {kind: http, to: app, count: 4, mode: closed, connections: 10}
  other: {kind: http, to: lone, count: 2, rate: 5, connections: 2}
arms: {light: {subject: kernelmesh}, heavy: {subject: kernelmesh, steps: 9}}
factors: {client.count: [3, 4]}
quick: {arms: [heavy]}
`

// TestCopies: what copies share is divided evenly and completely among them, and each load goes to a separate
// application as long as there are enough.
func TestCopies(t *testing.T) {
	s := mustParse(t, copiesSpec).At(Level{"client.count": "4"}).WithCopies()
	for name, want := range map[string]string{"client_1": "3 app_1", "client_2": "3 app_2", "client_3": "2 app_3",
		"client_4": "2 app_1", "other_1": "1 lone", "other_2": "1 lone"} {
		p := s.Loads[name]
		if p == nil || p.Options["connections"]+" "+p.To != want {
			t.Errorf("%s: got %+v, want %s", name, p, want)
		}
	}
	if len(s.Loads) != 6 || s.Loads["other_2"].Options["rate"] != "2.5" {
		t.Errorf("loads: %v", s.Loads)
	}
	if len(s.Applications) != 4 || s.Applications["lone"] == nil {
		t.Errorf("applications: %v", s.Applications)
	}
	limits := s.Applications["app_3"].Limits
	if v := limits.Float("cpus"); v < 0.299 || v > 0.301 || limits["memory"] != "33554432" || limits["pin"] != "2" {
		t.Errorf("limits of one of three: %v", limits)
	}
	again := mustParse(t, strings.Replace(copiesSpec, "quick:", "gates: {lag: 1s}\nquick:", 1))
	if c := again.WithCopies(); c.Loads["client_1"].Options["connections"] != "3" ||
		again.Loads["client"].Options["connections"] != "10" {
		t.Error("copies changed the spec they were made of")
	}
}

func TestCopiesRefused(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"connections: 10", "connections: 3", `"connections" is of all 4 copies together`},
		{"cpus: 0.9", "cpus: 0.02", `the limit "cpus" is of all 3 copies together, and each needs at least 0.01`},
		{"client.count: [3, 4]", "client.count: [2, 4]", `2 copies of a load cannot reach 3 copies of "app"`},
		{"count: 3", "count: 257", "must be at most 256"},
		{"steps: 9", "count: 2", `there is no key "count" in an arm`},
		{"arms: [heavy]", "arms: [haevy]", `which is not an arm of the spec; did you mean "heavy"?`},
		{"arms: [heavy]", "arms: [heavy, heavy]", `has the arm "heavy" twice`},
		{"arms: [heavy]", "arms: []", `"arms" must be a list of arms`},
	} {
		text := strings.Replace(copiesSpec, c.old, c.new, 1)
		if text == copiesSpec {
			t.Fatalf("nothing to replace: %q", c.old)
		}
		if _, err := Parse("many.yaml", []byte(text), testFeatures); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.new, err, c.want)
		}
	}
}

// TestQuickArms: the short form drops arms, with what factors set of them alone, and its resolved form is a spec.
func TestQuickArms(t *testing.T) {
	s := mustParse(t, strings.Replace(copiesSpec, "factors: {client.count: [3, 4]}", `factors:
  client.count: [3, 4]
  light.steps: [1, 10, 100]
  size: {small: {light.services: 10}, large: {light.services: 100}}
  work: {low: {other.rate: 5, light.sockops-steps: 1}, high: {other.rate: 10, light.sockops-steps: 2}}
`, 1))
	if err := s.Apply(Overrides{Quick: true}); err != nil {
		t.Fatal(err)
	}
	if got := s.AllArms(); !slices.Equal(got, []string{"direct", "aa", "heavy"}) {
		t.Errorf("arms of the short form: %v", got)
	}
	if got := len(s.Levels()); got != 4 {
		t.Errorf("%d levels, want 2 of client.count and 2 of work: %v", got, s.Levels())
	}
	resolved, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, string(resolved)); len(again.Levels()) != 4 {
		t.Errorf("resolved, it has the levels %v", again.Levels())
	}
}

// TestCases: a factor with cases sets several settings at each level, omits parts with count 0, and parses the same
// from the resolved spec.
func TestCases(t *testing.T) {
	const text = `name: cases
question: q
applications: {server: {kind: http}}
loads:
  client: {kind: http, to: server, rate: 100}
  execs: {kind: exec, rate: 50}
arms: {kernelmesh: {subject: kernelmesh}}
factors:
  workload:
    keepalive: {client.keepalive: true, execs.count: 0}
    connections: {client.keepalive: false, client.rate: 20, execs.count: 0}
    execs: {client.count: 0, execs.count: 1}
quick: {factors: {workload: [execs, keepalive]}}
`
	check := func(s *Spec) {
		t.Helper()
		want := map[string]string{"connections": "client false 20", "execs": "execs  50", "keepalive": "client true 100"}
		if levels := s.Levels(); len(levels) != len(want) {
			t.Fatalf("levels %v", levels)
		}
		for _, l := range s.Levels() {
			at := s.At(l)
			var got []string
			for name, p := range at.Loads {
				got = append(got, name+" "+p.Options["keepalive"]+" "+p.Options["rate"])
			}
			if len(got) != 1 || got[0] != want[l["workload"]] {
				t.Errorf("at %s the loads are %q, want %q", l["workload"], got, want[l["workload"]])
			}
			if makes := at.EventLoad() != ""; makes != (l["workload"] == "execs") {
				t.Errorf("at %s a load makes events: %v", l["workload"], makes)
			}
		}
	}
	s := mustParse(t, text)
	check(s)
	resolved, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("resolved", resolved, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, resolved)
	}
	check(again)
	for _, o := range []Overrides{{Quick: true}, {Set: []string{"workload=execs,keepalive"}}} {
		short := mustParse(t, text)
		if err := short.Apply(o); err != nil || len(short.Levels()) != 2 {
			t.Errorf("%+v: %v, %v", o, err, short.Levels())
		}
	}
	for wrong, says := range map[string]string{
		"{a: {client.keepalive: maybe}}":                    "must be true or false",
		"{a: {client.nothing: 1}}":                          "names no setting",
		"{a: {}}":                                           "sets nothing",
		"{A b: {client.keepalive: true}}":                   "small letters",
		"{a: {server.count: 0}}":                            "does not run",
		"{a: {loads.client.rate: 2000, loads.*.rate: 100}}": `"loads.client.rate" is set twice`,
		"{a: {loads.client.rate: 2000, client.rate: 100}}":  `"loads.client.rate" is set twice`,
	} {
		_, err := Parse("wrong", []byte(strings.Split(text, "  workload:")[0]+"  workload: "+wrong+"\n"), nil)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", wrong, err, says)
		}
	}
	if err := mustParse(t, text).Apply(Overrides{Set: []string{"workload=push"}}); err == nil {
		t.Error("--set takes a case that there is not")
	}
}
