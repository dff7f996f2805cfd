package spec

import (
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tare/experiments"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

var testFeatures = []string{"bpf-syscall", "bpf-stats", "sampling", "cgroup-create", "sidecars"}

const goodSpec = `name: sweep
question: What does it cost?
needs: [bpf-stats]
blocks: 7
warmup: 100ms
applications:
  server: {kind: http, delay: 1ms, limits: {cpus: 0.5, memory: 64MiB}}
  other: {kind: http}
loads:
  client: {kind: http, to: server, rate: 500}
  second: {kind: http, to: other, mode: closed, connections: 4}
arms:
  light: {subject: kernelmesh}
  heavy: {subject: kernelmesh, steps: 1000}
factors:
  rate: [500, 1000.0]
  "arms.*.steps": [0, 10, 100]
gates: {lag: 5ms}
quick:
  blocks: 6
  factors: {rate: [500]}
`

func TestParse(t *testing.T) {
	s, err := Parse("sweep.yaml", []byte(goodSpec), testFeatures)
	if err != nil {
		t.Fatal(err)
	}
	if s.Blocks != 7 || s.Warmup != 100*time.Millisecond || s.Duration != 2*time.Second {
		t.Errorf("times: %d blocks, %v, %v", s.Blocks, s.Warmup, s.Duration)
	}
	if got := s.Applications["server"]; got.Options["body"] != "128" || got.Options["delay"] != "1ms" ||
		got.Limits["memory"] != "67108864" {
		t.Errorf("server: %+v", got)
	}
	if got := s.Gates; got["lag"] != "5ms" || got["rate"] != "0.99" {
		t.Errorf("gates: %v", got)
	}
	if got := s.Levels(); len(got) != 6 || got[0]["rate"] != "500" || got[5]["rate"] != "1000" ||
		got[5]["arms.*.steps"] != "100" {
		t.Errorf("levels: %v", got)
	}
	at := s.At(s.Levels()[5])
	if at.Loads["client"].Options["rate"] != "1000" || at.Arms["light"].Options["steps"] != "100" ||
		at.Arms["heavy"].Options["steps"] != "100" {
		t.Errorf("at the last level: %+v %+v", at.Loads["client"], at.Arms["light"])
	}
	if s.Loads["client"].Options["rate"] != "500" || s.Arms["heavy"].Options["steps"] != "1000" {
		t.Error("taking a level changed the spec")
	}
}

// TestResolvedIsSpec: the resolved spec in run.json can be run again and has the same meaning.
func TestResolvedIsSpec(t *testing.T) {
	s, err := Parse("sweep.yaml", []byte(goodSpec), testFeatures)
	if err != nil {
		t.Fatal(err)
	}
	first, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("run.json", first, testFeatures)
	if err != nil {
		t.Fatalf("%v\n%s", err, first)
	}
	second, _ := json.MarshalIndent(again, "", " ")
	if string(first) != string(second) {
		t.Errorf("not the same:\n%s\n%s", first, second)
	}
}

// TestLongResolvedIsSpec: even the resolved forms of the longest specs that a person can write can be parsed.
func TestLongResolvedIsSpec(t *testing.T) {
	const head = "name: long\nquestion: What does it cost?\napplications: {a: {kind: http}}\nloads: {"
	for what, spec := range map[string]func(i int) string{
		"loads": func(i int) string {
			return fmt.Sprintf("%s: {kind: http, to: a, rate: 1}, ", strconv.FormatInt(int64(i+370), 36))
		},
		"closed loads": func(i int) string {
			return fmt.Sprintf("%s: {kind: http, to: a, mode: closed}, ", strconv.FormatInt(int64(i+370), 36))
		},
	} {
		text := head
		for i := 0; len(text) < maxSpecBytes-60; i++ {
			text += spec(i)
		}
		s, err := Parse("long.yaml", []byte(text+"}\n"), testFeatures)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, indent := range []string{"", "    "} {
			first, err := json.MarshalIndent(s, "", indent)
			if err != nil {
				t.Fatal(err)
			}
			if len(first) <= maxSpecBytes {
				t.Fatalf("%s: %d bytes say nothing", what, len(first))
			}
			again, err := Parse("run.json", first, testFeatures)
			if err != nil {
				t.Fatalf("%s, %d bytes: %v", what, len(first), err)
			}
			if second, _ := json.MarshalIndent(again, "", indent); string(first) != string(second) {
				t.Errorf("%s: not the same", what)
			}
		}
	}
}

// TestLongAndHostile: hostile text of great length is rejected before the YAML parser sees it.
func TestLongAndHostile(t *testing.T) {
	for what, text := range map[string]string{
		"deep":     strings.Repeat(`{"a":`, 1<<12) + "1" + strings.Repeat("}", 1<<12),
		"lists":    `{"a":` + strings.Repeat("[", 1<<14) + strings.Repeat("]", 1<<14) + "}",
		"not JSON": "{" + strings.Repeat("a: 1, ", 1<<12) + "}",
		"too long": `{"a":"` + strings.Repeat("x", maxResolvedBytes) + `"}`,
	} {
		_, err := Parse("s.yaml", []byte(text), testFeatures)
		if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" ||
			!strings.Contains(err.Error(), "a spec has at most 16 KiB") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestBuiltIn(t *testing.T) {
	for _, name := range slices.Concat(experiments.Names(), experiments.ClusterNames()) {
		file, data, ok := experiments.File(name)
		if !ok {
			t.Fatalf("%s is not there", name)
		}
		s, err := Parse(file, data, testFeatures)
		if err != nil {
			t.Fatal(err)
		}
		if s.Name != path.Base(name) {
			t.Errorf("%s calls itself %s", file, s.Name)
		}
		if name == "quickstart" && s.Blocks < 8 {
			t.Errorf("quickstart has %d blocks", s.Blocks)
		}
	}
}

// wrongSpecs are changes to a good spec, each with its exact error message.
var wrongSpecs = []struct{ name, old, new, want string }{
	{"misspelt key", "warmup:", "wramup:", `s.yaml:5:1: there is no key "wramup" in a spec; did you mean "warmup"?`},
	{"unknown key", "blocks: 7", "colour: red", `s.yaml:4:1: there is no key "colour" in a spec`},
	{"key twice", "blocks: 7", "name: again", `s.yaml:4:1: this is not YAML: mapping key "name" already defined at [1:1]`},
	{"tab", "  server: {", "\tserver: {", `s.yaml:7:1: this is not YAML: found character '	' that cannot start any token`},
	{"no unit", "warmup: 100ms", "warmup: 100",
		`s.yaml:5:9: "warmup" must be a duration with its unit, such as 300ms or 2s, not "100"`},
	{"negative time", "warmup: 100ms", "warmup: -1s", `s.yaml:5:9: "warmup" must be at least 0s, not -1s`},
	{"no blocks", "blocks: 7", "blocks: 0", `s.yaml:4:9: "blocks" must be at least 1, not 0`},
	{"half a block", "blocks: 7", "blocks: 7.5", `s.yaml:4:9: "blocks" must be a whole number, not "7.5"`},
	{"no value", "blocks: 7", "blocks:", `s.yaml:4:8: "blocks" must be a single value, not nothing`},
	{"list for a value", "blocks: 7", "blocks: [7]", `s.yaml:4:9: "blocks" must be a single value, not a list`},
	{"value for a list", "[bpf-stats]", "bpf-stats", `s.yaml:3:8: "needs" must be a list of features, not a single value`},
	{"unknown feature", "[bpf-stats]", "[bpf-stat]",
		`s.yaml:3:9: there is no feature "bpf-stat"; did you mean "bpf-stats"?`},
	{"no question", "question: What does it cost?\n", "", `s.yaml:1:1: the spec has no "question"`},
	{"empty question", "What does it cost?", `""`, `s.yaml:2:11: "question" must not be empty`},
	{"capitals in the name", "name: sweep", "name: Sweep",
		`s.yaml:1:7: the name of the experiment must be small letters, digits and -, at most 40, not "Sweep"`},
	{"path in a name", "  other: {", "  ../other: {",
		`s.yaml:8:3: the name of an application must be small letters, digits and -, at most 40, not "../other"`},
	{"unknown kind", "other: {kind: http}", "other: {kind: htpp}",
		`s.yaml:8:17: there is no kind "htpp"; did you mean "http"?`},
	{"no kind", "other: {kind: http}", "other: {body: 1}", `s.yaml:8:10: an application "other" has no "kind"`},
	{"unknown subject", "{subject: kernelmesh}", "{subject: kernel-mesh}",
		`s.yaml:13:20: there is no subject "kernel-mesh"; did you mean "kernelmesh"?`},
	{"baseline named", "  light:", "  direct:",
		`s.yaml:13:3: the arm "direct" is reserved for the baseline, which always runs`},
	{"load to nowhere", "to: server", "to: sevrer",
		`s.yaml:10:3: the load "client" goes to "sevrer", which is not an application; did you mean "server"?`},
	{"load without a target", "to: server, ", "", `s.yaml:10:11: a load "client" has no "to"`},
	{"target of an application", "kind: http, delay: 1ms", "kind: http, to: other",
		`s.yaml:7:24: there is no key "to" in an application "server"`},
	{"misspelt option", "connections: 4", "conections: 4",
		`s.yaml:11:49: there is no key "conections" in a load "second"; did you mean "connections"?`},
	{"open without rate", "to: server, rate: 500", "to: server, mode: open",
		`s.yaml:16:3: the factor "rate" could mean loads.client.rate, loads.second.rate; write one of them in full, or with a * to set all`},
	{"neither rate nor factor", "to: other, mode: closed", "to: other",
		`s.yaml:11:3: an open load needs a "rate", in requests per second`},
	{"closed with rate", "mode: closed,", "mode: closed, rate: 5,",
		`s.yaml:16:3: the factor "rate" could mean loads.client.rate, loads.second.rate; write one of them in full, or with a * to set all`},
	{"unknown word", "mode: closed", "mode: close",
		`s.yaml:11:41: "mode" must be one of open, closed, not "close"; did you mean "closed"?`},
	{"not a switch", "connections: 4", "keepalive: yes", `s.yaml:11:60: "keepalive" must be true or false, not "yes"`},
	{"not bytes", "memory: 64MiB", "memory: 64 apples",
		`s.yaml:7:64: "memory" must be a number of bytes, such as 128, 64KiB or 10MB, not "64 apples"`},
	{"too large a body", "delay: 1ms", "body: 1GiB", `s.yaml:7:30: "body" must be at most 16MiB, not 1GiB`},
	{"too large a level", `"arms.*.steps": [0, 10, 100]`, `server.body: [128, 17MiB]`,
		`s.yaml:17:22: a level of "server.body" must be at most 16MiB, not 17MiB`},
	{"too little memory", "memory: 64MiB", "memory: 1", `s.yaml:7:64: "memory" must be at least 4MiB, not 1`},
	{"no CPU", "cpus: 0.5", "cpus: 0", `s.yaml:7:51: "cpus" must be at least 0.01, not 0`},
	{"not a number", "cpus: 0.5", "cpus: .nan", `s.yaml:7:51: "cpus" must be a number, not ".nan"`},
	{"unknown limit", "cpus: 0.5", "cpu: 0.5", `s.yaml:7:45: there is no key "cpu" in limits; did you mean "cpus"?`},
	{"unknown gate", "lag: 5ms", "lags: 5ms", `s.yaml:18:9: there is no key "lags" in gates; did you mean "lag"?`},
	{"gate over 1", "lag: 5ms", "rate: 99", `s.yaml:18:15: "rate" must be at most 1, not 99`},
	{"unknown factor", "  rate: [500, 1000.0]", "  rte: [500, 1000.0]",
		`s.yaml:16:3: the factor "rte" names no setting of this experiment; did you mean "rate"?`},
	{"factor without levels", "[500, 1000.0]", "[]", `s.yaml:16:9: the factor "rate" must have a list of levels`},
	{"level twice", "[500, 1000.0]", "[500, 5e2]", `s.yaml:16:15: the factor "rate" has the level 500 twice`},
	{"wrong level", "[500, 1000.0]", "[500, fast]", `s.yaml:16:15: a level of "rate" must be a number, not "fast"`},
	{"factor twice", "  rate: [500, 1000.0]", "  light.steps: [1, 2]",
		`s.yaml:17:3: the factor "arms.*.steps" sets what another factor sets`},
	{"factor of two types", `"arms.*.steps": [0, 10, 100]`, `"loads.client.*": [1]`,
		`s.yaml:17:3: the factor "loads.client.*" sets values of different types: `},
	{"quick without its factor", "factors: {rate: [500]}", "factors: {steps: [500]}",
		`s.yaml:21:13: the short form has levels for "steps", which is not a factor of the spec`},
	{"alias", "blocks: 7", "blocks: &n 7", `s.yaml:4:9: "blocks" must be a single value, not an anchor or an alias`},
	{"baseline without a subject", "gates:", "baseline: {steps: 1}\ngates:",
		`s.yaml:18:11: the baseline has no "subject"`},
	{"baseline with a setting that it has not", "gates:", "baseline: {subject: kernelmesh, stips: 1}\ngates:",
		`s.yaml:18:33: there is no key "stips" in the baseline; did you mean "steps"?`},
	{"unknown store", "gates:", "baseline: {subject: store, store: snapshto}\ngates:",
		`s.yaml:18:1: store: there is no store "snapshto"; it can be one of naive, pooled, sized, snapshot, value`},
	{"variant of nothing", "light: {subject: kernelmesh}", "light: {subject: variant}",
		`s.yaml:13:3: a variant needs "set": what differs from the baseline, such as server.delay=50us`},
	{"variant without a value", "light: {subject: kernelmesh}", "light: {subject: variant, set: server.delay}",
		`s.yaml:13:3: there is no = in "server.delay"`},
	{"variant of no setting", "light: {subject: kernelmesh}", "light: {subject: variant, set: server.dely=1ms}",
		`s.yaml:13:3: "server.dely" names no setting of this experiment; did you mean "server.delay"?`},
	{"variant with a wrong value", "light: {subject: kernelmesh}", "light: {subject: variant, set: server.delay=1}",
		`s.yaml:13:3: the value of "server.delay" must be a duration with its unit, such as 300ms or 2s, not "1"`},
	{"variant of an arm", "light: {subject: kernelmesh}", "light: {subject: variant, set: heavy.steps=1}",
		`s.yaml:13:3: "heavy.steps" is not a setting of an application or a load`},
	{"variant that sets twice", "light: {subject: kernelmesh}",
		`light: {subject: variant, set: "server.delay=1ms, applications.server.delay=2ms"}`,
		`s.yaml:13:3: "applications.server.delay" is set twice`},
	{"variant that sets what a factor sweeps", "light: {subject: kernelmesh}",
		"light: {subject: variant, set: client.rate=5}",
		`s.yaml:13:3: the variant "light" sets "loads.client.rate", which the factor "rate" sweeps`},
	{"variant that cannot be", "light: {subject: kernelmesh}", "light: {subject: variant, set: second.rate=5}",
		`s.yaml:13:3: with what it sets, loads.second: "rate" does not apply to a closed load, which goes as fast as it ` +
			`can`},
	{"limits of a variant", "light: {subject: kernelmesh}",
		"light: {subject: variant, set: server.body=1kB, limits: {cpus: 0.5}}",
		`s.yaml:13:51: an arm "light" cannot have "limits": Tare starts nothing that they would apply to`},
	{"limits of what is installed", "light: {subject: kernelmesh}",
		"light: {subject: installed, components: 'container=proxy,component=proxy', limits: {memory: 64MiB}}",
		`s.yaml:13:78: an arm "light" cannot have "limits": Tare starts nothing that they would apply to`},
	{"no loads, and a subject that needs them", goodSpec, "name: a\nquestion: b\nbaseline: {subject: kernelmesh}\n",
		`s.yaml:1:1: the spec has no "applications"`},
	{"no loads, and a baseline that needs them", goodSpec,
		"name: a\nquestion: b\narms: {c: {subject: store, store: value}}\n", `s.yaml:1:1: the spec has no "applications"`},
	{"second document", "gates:", "---\ngates:", `s.yaml:19:1: a spec is one document; this is a second`},
	{"not keys", goodSpec, "- a\n- b\n", `s.yaml:1:1: a spec must be keys with values, not a list`},
	{"empty", goodSpec, "# nothing\n", `s.yaml: the spec is empty`},
	{"too long", goodSpec, strings.Repeat("#", 70<<10), `s.yaml: a spec has at most 16 KiB; this has 70`},
	{"too many levels", "[0, 10, 100]", "[" + manyLevels(2000) + "]",
		`s.yaml:16:3: the plan has arms at more than 1000 levels in all`},
	{"too many trials", "blocks: 7", "blocks: 9999", `s.yaml:16:3: the plan has more than 20000 trials`},
}

func manyLevels(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(param.Number(float64(i)))
	}
	return b.String()
}

func TestWrongSpecs(t *testing.T) {
	for _, c := range wrongSpecs {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(goodSpec, c.old) {
				t.Fatalf("the good spec has no %q", c.old)
			}
			_, err := Parse("s.yaml", []byte(strings.Replace(goodSpec, c.old, c.new, 1)), testFeatures)
			if err == nil {
				t.Fatal("no error")
			}
			if code := fault.CodeOf(err); code != fault.Usage {
				t.Errorf("exit code %d", code)
			}
			if strings.Contains(c.want, " must be at ") && fault.HintOf(err) == "" {
				t.Errorf("there is no hint for %v", err)
			}
			if got := err.Error(); got != c.want && (!strings.HasSuffix(c.want, ": ") || !strings.HasPrefix(got, c.want)) {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestApply(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     Overrides
		check func(*Spec) bool
		want  string
	}{
		{"blocks", Overrides{Blocks: 3}, func(s *Spec) bool { return s.Blocks == 3 }, ""},
		{"quick", Overrides{Quick: true}, func(s *Spec) bool {
			return s.Blocks == 6 && len(s.Levels()) == 3 &&
				s.Warmup == 100*time.Millisecond
		}, ""},
		{"blocks beat quick", Overrides{Quick: true, Blocks: 9}, func(s *Spec) bool { return s.Blocks == 9 }, ""},
		{"one value", Overrides{Set: []string{"rate=50"}},
			func(s *Spec) bool { return len(s.Factors) == 1 && s.Loads["client"].Options["rate"] == "50" }, ""},
		{"other levels", Overrides{Set: []string{"rate=50,60"}},
			func(s *Spec) bool { return reflect.DeepEqual(s.Factors[0].Levels, []string{"50", "60"}) }, ""},
		{"new factor", Overrides{Set: []string{"body=1kB,2kB", "server.delay=0s"}}, nil,
			`--set body=1kB,2kB: "body" could mean applications.other.body, applications.server.body; write one of them in full, or with a * to set all`},
		{"new factor in full", Overrides{Set: []string{"server.body=1kB,2kB"}},
			func(s *Spec) bool { return reflect.DeepEqual(s.Factors[2].Levels, []string{"1000", "2000"}) }, ""},
		{"limit", Overrides{Set: []string{"applications.*.limits.cpus=0.25"}},
			func(s *Spec) bool { return s.Applications["other"].Limits["cpus"] == "0.25" }, ""},
		{"part of a factor", Overrides{Set: []string{"light.steps=5"}}, nil,
			`--set light.steps=5: "light.steps" is swept by another factor of the spec`},
		{"no value", Overrides{Set: []string{"rate"}}, nil, `--set rate: there is no = in it`},
		{"unknown", Overrides{Set: []string{"rat=1"}}, nil,
			`--set rat=1: "rat" names no setting of this experiment; did you mean "rate"?`},
		{"wrong value", Overrides{Set: []string{"rate=1,x"}}, nil, `--set rate=1,x: "rate" must be a number, not "x"`},
		{"sampling", Overrides{SampleHz: 101}, func(s *Spec) bool { return s.SampleHz == 101 }, ""},
		{"negative blocks", Overrides{Blocks: -1}, nil, `--blocks: "blocks" must be at least 1, not -1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Parse("s.yaml", []byte(goodSpec), testFeatures)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Apply(c.o)
			if c.want == "" {
				if err != nil || !c.check(s) {
					t.Errorf("%v, %+v", err, s)
				}
				return
			}
			if err == nil || err.Error() != c.want || fault.CodeOf(err) != fault.Usage {
				t.Errorf("\n got %v\nwant %s", err, c.want)
			}
		})
	}
}

// FuzzParse: for any bytes, the parser returns either a spec that has every arm at every level, or a fault with code
// Usage.
func FuzzParse(f *testing.F) {
	f.Add([]byte(goodSpec))
	for _, c := range wrongSpecs {
		f.Add([]byte(strings.Replace(goodSpec, c.old, c.new, 1)))
	}
	for _, name := range experiments.Names() {
		_, data, _ := experiments.File(name)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("f.yaml", data, testFeatures)
		if err != nil {
			if fault.CodeOf(err) != fault.Usage {
				t.Errorf("%v has the code %d", err, fault.CodeOf(err))
			}
			return
		}
		for _, l := range s.Levels() {
			for _, arm := range s.AllArms() {
				s.At(l).As(arm).WithCopies()
			}
		}
		if _, err := json.Marshal(s); err != nil {
			t.Error(err)
		}
	})
}
