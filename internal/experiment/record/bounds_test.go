package record

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/scale/ledger"
)

func TestCheckShape(t *testing.T) {
	many := func(one string, n int) string { return "[" + strings.Repeat(one+",", n) + one + "]" }
	for _, c := range []struct{ name, doc, want string }{
		{"small", `{"a":[1,2,{"b":null}]}`, ""},
		{"text is no shape", `{"a":"` + strings.Repeat(`[{,:\"`, maxMembers) + `"}`, ""},
		{"not JSON", `]]}}`, ""},
		{"torn", `{"a":"b\`, ""},
		{"deep", strings.Repeat("[", maxDepth+1), "nested more than 64 deep"},
		{"objects", many("{}", maxElements), "objects and elements"},
		{"nulls", many("null", maxElements), "objects and elements"},
		{"arrays", many("[]", maxElements), "objects and elements"},
		{"members", "{" + strings.Repeat(`"a":1,`, maxMembers+1) + "}", "members of objects"},
	} {
		err := checkShape([]byte(c.doc))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSizeOf(t *testing.T) {
	type inner struct {
		Text string
		Next *inner
	}
	for name, c := range map[string]struct {
		v           any
		least, most int64
	}{
		"a text":    {strings.Repeat("x", 1000), 1000, 1100},
		"a slice":   {make([]float64, 1000), 8000, 8100},
		"structs":   {[]inner{{Text: "abc", Next: &inner{Text: "defg"}}}, 55, 120},
		"a map":     {map[string]float64{"abc": 1, "defg": 2}, 2*24 + 7, 200},
		"raw":       {map[string]json.RawMessage{"a": make([]byte, 5000)}, 5000, 5200},
		"no map":    {map[string]string(nil), 8, 8},
		"interface": {[]any{"abc", nil, 7.0}, 3*16 + 3 + 8, 120},
	} {
		if n := SizeOf(c.v); n < c.least || n > c.most {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

// stalls returns a ledger with n stalls, each of which takes a few hundred bytes in a line.
func stalls(n int) *ledger.Ledger {
	l := &ledger.Ledger{Noise: &ledger.Noise{StallsOmitted: 1}}
	for i := range n {
		s := ledger.Stall{From: int64(i), Comm: strings.Repeat("x", 15), Cgroup: "/" + strings.Repeat("y", 200)}
		l.Noise.Stalls, l.Noise.Occupied = append(l.Noise.Stalls, s), append(l.Noise.Occupied, s)
	}
	return l
}

// Parts of a trial beyond the bounds are left out, step by step, so that every line that is written can be read.
func TestAppendFitsWhatItWrites(t *testing.T) {
	huge := json.RawMessage(`"` + strings.Repeat("z", maxTrialBytes) + `"`)
	nodes := func(n, stalled int, cgroups int) (all []NodeTrial) {
		for i := range n {
			l := stalls(stalled)
			l.Cgroups = make([]ledger.Cgroup, cgroups)
			trial := testTrial(i)
			trial.Ledger = l
			all = append(all, NodeTrial{Name: fmt.Sprint("n", i), Trial: &trial})
		}
		return all
	}
	for _, c := range []struct {
		name    string
		change  func(*Trial)
		without []string // parts that the warnings name as left out
		failed  string
	}{
		{"small", func(t *Trial) { t.Ledger = stalls(10) }, nil, ""},
		{"as many stalls as there can be", func(t *Trial) { t.Ledger = stalls(ledger.MaxStalls) }, nil, ""},
		{"stalls of nodes", func(t *Trial) { t.Ledger, t.Nodes = stalls(5), nodes(100, 1000, 10) },
			[]string{"single stalls of nodes"}, ""},
		{"ledgers of nodes", func(t *Trial) { t.Ledger, t.Nodes = stalls(5), nodes(100, 0, 2000) },
			[]string{"single stalls of nodes", "single stalls, sandboxes", "the records of nodes"}, ""},
		{"evidence", func(t *Trial) { t.Ledger, t.Evidence = stalls(5), map[string]json.RawMessage{"g": huge} },
			[]string{"single stalls of nodes", "single stalls, sandboxes", "the records of nodes", "what only guests know"}, ""},
		{"evidence without a ledger", func(t *Trial) { t.Subject = huge }, nil, ""},
		{"an error of 16 MiB", func(t *Trial) { t.Validity.Failed = string(huge) }, nil,
			"its record was too large to be kept"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		w, err := Create(dir, testRun(2))
		if err != nil {
			t.Fatal(err)
		}
		trial := testTrial(0)
		c.change(&trial)
		before, _ := json.Marshal(trial)
		if err := w.Append(trial); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if after, _ := json.Marshal(trial); string(after) != string(before) {
			t.Errorf("%s: what was appended has changed", c.name)
		}
		if err := w.Append(testTrial(1)); err != nil || w.Close() != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		full, err := Read(dir)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		lean, err := ReadLean(dir)
		if err != nil || len(lean.Trials) != 2 || len(full.Trials) != 2 {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := full.Trials[0]
		if got.Validity.Failed != c.failed {
			t.Errorf("%s: failed %.60q", c.name, got.Validity.Failed)
		}
		var warnings []string
		if got.Ledger != nil {
			for _, x := range got.Ledger.Warnings {
				warnings = append(warnings, x.Message)
			}
		}
		if len(warnings) != len(c.without) {
			t.Errorf("%s: %q", c.name, warnings)
			continue
		}
		for i := range warnings {
			if !strings.Contains(warnings[i], c.without[i]) {
				t.Errorf("%s: %q", c.name, warnings)
			}
		}
		if whole := c.without == nil && c.failed == "" && trial.Subject == nil; whole != (w.Trimmed() == 0) {
			t.Errorf("%s: %d trials were trimmed", c.name, w.Trimmed())
		}
		if len(c.without) > 0 {
			if m := lean.Trials[0].Nodes; len(m) > 0 && len(m[7].Trial.Metrics) != 1 {
				t.Errorf("%s: the metrics of nodes are %v", c.name, m[7].Trial.Metrics)
			}
		}
	}
}

// A full run directory accepts no more trials, and can still be read.
func TestAppendRefusesMoreThanCanBeRead(t *testing.T) {
	for name, fill := range map[string]func(*Writer){
		"lines":  func(w *Writer) { w.lines = MaxAttempts },
		"bytes":  func(w *Writer) { w.size = maxTrialsBytes - 10 },
		"memory": func(w *Writer) { w.kept = maxKept },
	} {
		dir := filepath.Join(t.TempDir(), "run")
		w, err := Create(dir, testRun(3))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Append(testTrial(0)); err != nil {
			t.Fatal(err)
		}
		fill(w)
		err = w.Append(testTrial(1))
		if fault.CodeOf(err) != fault.Invalid || fault.HintOf(err) == "" ||
			!strings.Contains(err.Error(), "cannot hold more") {
			t.Errorf("%s: %v", name, err)
		}
		w.Close()
		if c, err := ReadLean(dir); err != nil || len(c.Trials) != 1 || len(c.Warnings) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// manyFactors returns n factors whose names and levels have the given number of bytes in all, with an arm of testRun.
func manyFactors(n, bytes int) map[string]string {
	all := map[string]string{}
	bytes -= len(Direct)
	for i := range n {
		name := fmt.Sprintf("f%04d", i)
		all[name] = "1"
		bytes -= len(name) + 1
	}
	all["f0000"] += strings.Repeat("x", bytes)
	return all
}

// A trial whose factors exceed the bounds is neither written nor read.
func TestFactorsOfTrials(t *testing.T) {
	for _, c := range []struct {
		name    string
		factors map[string]string
		want    string
	}{
		{"as many as there can be", manyFactors(MaxFactors, maxPlaceBytes), ""},
		{"one more", manyFactors(MaxFactors+1, maxPlaceBytes), "65 factors, and 64 are allowed"},
		{"a byte more", manyFactors(MaxFactors, maxPlaceBytes+1), "its arm and its factors have 4097 bytes of text"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		run, trial := testRun(2), testTrial(0)
		trial.Factors = c.factors
		if c.want == "" {
			run.Plan[0].Factors = c.factors
		}
		w, err := Create(dir, run)
		if err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(trial)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(what string, code fault.Code, err error) {
			t.Helper()
			if (err == nil) != (c.want == "") ||
				err != nil && (!strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != code) {
				t.Errorf("%s: %s: %v, want %q", c.name, what, err, c.want)
			}
		}
		refused("Append", fault.Invalid, w.Append(trial))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, TrialsFile), append(line, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err = Read(dir)
		refused("Read", fault.Usage, err)
		_, err = ReadLean(dir)
		refused("ReadLean", fault.Usage, err)
	}
}

// A run that could not be read back is rejected before its first trial.
func TestCreateRefusesWhatCannotBeRead(t *testing.T) {
	plan := func(n, levels int) Run {
		r := testRun(n)
		for i := range r.Plan {
			r.Plan[i].Factors = map[string]string{"rate": fmt.Sprint(i % levels)}
		}
		return r
	}
	factors := func(n, bytes int) Run {
		r := testRun(3)
		for i := range r.Plan {
			r.Plan[i].Factors = manyFactors(n, bytes)
		}
		return r
	}
	for name, c := range map[string]struct {
		run  Run
		want string
	}{
		"as many factors as there can be": {factors(MaxFactors, maxPlaceBytes), ""},
		"a factor more":                   {factors(MaxFactors+1, maxPlaceBytes), "65 factors, and 64 are allowed"},
		"a byte more of factors":          {factors(MaxFactors, maxPlaceBytes+1), "its factors have 4097 bytes of text"},
		"the largest plan":                {plan(MaxTrials, MaxPlaces), ""},
		"trials":                          {plan(MaxTrials+1, 1), "its plan has 20001 trials"},
		"levels":                          {plan(MaxTrials, MaxPlaces+1), "more than 1000 levels"},
		"a spec": {Run{Schema: RunSchema,
			Spec: json.RawMessage(`"` + strings.Repeat("x", maxRunBytes) + `"`)}, "too large"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		w, err := Create(dir, c.run)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			w.Close()
			if _, err := ReadLean(dir); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, TrialsFile)); err == nil {
			t.Errorf("%s: it left a file", name)
		}
	}
}

func FuzzCheckShape(f *testing.F) {
	f.Add([]byte(`{"a":[1,"\"",{}]}`))
	f.Add([]byte(`"\`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if checkShape(doc) != nil {
			return
		}
		var names names
		if trial, err := lean(doc, &names); err == nil && SizeOf(trial) > int64(1000+1000*len(doc)) {
			t.Errorf("%d bytes took %d", len(doc), SizeOf(trial))
		}
	})
}
