package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/test/analysistest"
)

// writeRuns writes a synthetic run for each of the given latencies, which its subject adds. The runs are of successive
// days, beginning with the given one, and each is in a separate directory below parent.
func writeRuns(t *testing.T, from uint64, latencies ...float64) (parent string) {
	t.Helper()
	parent = t.TempDir()
	for i, latency := range latencies {
		run, trials := analysistest.Quickstart(analysistest.Truth{
			Blocks: 8, BPF: 3.1e-6, Latency: latency, Noise: 0.5e-6, MapBytes: 1.2e6, Day: from + uint64(i),
		})
		writeRecord(t, filepath.Join(parent, run.ID), run, trials)
	}
	return parent
}

func runCompare(args ...string) (string, error) { return runCommand(newCompare(), args...) }

func TestCompareCommand(t *testing.T) {
	const fast, slow = 9e-6, 40e-6
	old, new := writeRuns(t, 0, fast, fast, fast), writeRuns(t, 3, slow, slow, slow)
	same := writeRuns(t, 6, fast)
	out, err := runCompare(old, new)
	if err != nil || !strings.Contains(out, "Changed: ") || !strings.Contains(out, "latency p50 of candidate (+") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = runCompare(old, same); err != nil || strings.Contains(out, "latency p50 of candidate (+") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = runCompare(old, new, same); err != nil || strings.Count(out, "new against old") != 2 {
		t.Errorf("of two new ones: %v\n%s", err, out)
	}
	var c comparison.Comparison
	if out, err = runCompare(old, new, "--json"); err != nil || json.Unmarshal([]byte(out), &c) != nil ||
		c.Schema != comparison.Schema {
		t.Errorf("%v\n%s", err, out)
	}
	history := writeRuns(t, 10, fast, fast, fast, fast, fast, fast, fast, slow, slow, slow, slow, slow, slow, slow)
	if out, err = runCompare("--history", history); err != nil || !strings.Contains(out, "14 runs") ||
		!strings.Contains(out, "since 2026-01-19") {
		t.Errorf("%v\n%s", err, out)
	}
	var course comparison.Course
	if out, err = runCompare("--history", history, "--json"); err != nil || json.Unmarshal([]byte(out), &course) != nil ||
		course.Schema != comparison.HistorySchema || len(course.Lines) == 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestComparePages: the pages need no script and fetch nothing, and show what the text shows.
func TestComparePages(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	for want, args := range map[string][]string{
		"latency p50":           {writeRuns(t, 0, 9e-6, 9e-6), writeRuns(t, 2, 40e-6, 40e-6)},
		"<svg class=\"course\"": {"--history", writeRuns(t, 4, 9e-6, 9e-6, 9e-6)},
	} {
		if _, err := runCompare(append(args, "--html", page)...); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(page)
		if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), "<script") {
			t.Errorf("%v, no %q in\n%s", err, want, text)
		}
	}
	if _, err := runCompare("--history", writeRuns(t, 0, 9e-6), "--html",
		filepath.Join(page, "x")); fault.CodeOf(err) != fault.Machine {
		t.Errorf("a page that cannot be written: %v", err)
	}
}

// TestCompareMissing: the first line and the page say what is not compared, and why. So does the text if nothing is
// compared.
func TestCompareMissing(t *testing.T) {
	lossy := func(voids []string) (parent string) {
		parent = t.TempDir()
		for day := range uint64(3) {
			run, trials := analysistest.Quickstart(analysistest.Truth{
				Blocks: 8, BPF: 3.1e-6, Latency: 40e-6, Noise: 0.5e-6, MapBytes: 1.2e6, Day: 3 + day,
			})
			for i := range trials {
				if trials[i].Arm == "candidate" {
					trials[i].Validity = record.Validity{Reasons: []record.Reason{{
						Gate: "stall", Message: "it stood still", Voids: voids,
					}}}
				}
			}
			writeRecord(t, filepath.Join(parent, run.ID), run, trials)
		}
		return parent
	}
	old, new := writeRuns(t, 0, 9e-6, 9e-6, 9e-6), lossy([]string{"latency_p50_seconds"})
	page := filepath.Join(t.TempDir(), "page.html")
	none, err := runCompare(old, lossy(nil), "--anyway", "--html", page)
	html, _ := os.ReadFile(page)
	for _, text := range []string{strings.Join(strings.Fields(none), " "), string(html)} {
		if want := "8 of 8 trials were lost: the gate stall (it stood still)"; fault.CodeOf(err) != fault.Usage ||
			!strings.Contains(text, want) {
			t.Errorf("nothing in common: %v, no %q in\n%s", err, want, text)
		}
	}
	out, err := runCompare(old, new, "--html", page)
	html, readErr := os.ReadFile(page)
	if err := errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strings.Join(strings.Fields(out), " "), string(html)} {
		for _, want := range []string{
			"Not compared: latency p50 of candidate.",
			"latency p50 of candidate (8 of 8 trials were lost: the gate stall (it stood still)).",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}

func TestCompareRefuses(t *testing.T) {
	one, two := writeRuns(t, 0, 9e-6), writeRuns(t, 1, 9e-6)
	alter := func(parent, old, new string) {
		entries, err := os.ReadDir(parent)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(parent, entries[0].Name(), record.RunFile)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("%s lacks %s", path, old)
		}
		if err := os.WriteFile(path, bytes.ReplaceAll(text, []byte(old), []byte(new)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	empty := t.TempDir()
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "want two runs or more"},
		{[]string{one}, "want two runs or more"},
		{[]string{one, empty}, "there is no run.json, neither in it nor in a directory in it"},
		{[]string{one, filepath.Join(empty, "none")}, "cannot read it"},
		{[]string{one, two, two, "--json"}, "one document holds one comparison"},
	} {
		if out, err := runCompare(c.args...); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %q\n%s", c.args, err, c.says, out)
		}
	}
	alter(two, "6.18.0", "6.1.0")
	if _, err := runCompare(one, two); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(err.Error(), "the kernel: 6.18.0 and 6.1.0") {
		t.Errorf("another kernel: %v", err)
	}
	if out, err := runCompare(one, two, "--anyway"); err != nil {
		t.Errorf("another kernel, anyway: %v\n%s", err, out)
	}
	alter(two, "6.1.0", "6.18.0")
	if _, err := runCompare(one, one); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(err.Error(), "compared with itself") {
		t.Errorf("the same run twice: %v", err)
	}
	alter(two, `"candidate": "0.1.0"`, `"candidate": "0.2.0"`)
	mixed := t.TempDir()
	for i, parent := range []string{one, two} {
		entries, err := os.ReadDir(parent)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(parent, entries[0].Name()),
			filepath.Join(mixed, strings.Repeat("x", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	three := writeRuns(t, 2, 9e-6)
	if _, err := runCompare(mixed, three); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(err.Error(), "not repeats of the same thing") {
		t.Errorf("two versions on one side: %v", err)
	}
	// A history holds any versions, and what cannot be read is left out.
	if err := os.MkdirAll(filepath.Join(mixed, "torn"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mixed, "torn", record.RunFile), []byte(`{"schema":`), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := runCompare("--history", mixed); err != nil || !strings.Contains(out, "2 runs") {
		t.Errorf("a history of two versions and a torn record: %v\n%s", err, out)
	}
	for _, parent := range []string{one, two} {
		entries, err := os.ReadDir(parent)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(parent, entries[0].Name(), record.TrialsFile)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if parent == two {
			if err := os.WriteFile(path, bytes.ReplaceAll(text, []byte(`"candidate"`), []byte(`"other"`)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	alter(two, `"candidate"`, `"other"`)
	if _, err := runCompare(one, two); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(err.Error(), "no estimate with an interval in common") {
		t.Errorf("other arms: %v", err)
	}
}

// TestCompareClusters: runs in clusters by versions that did not record the nodes are not compared, and the reason is
// not blamed on one of them alone.
func TestCompareClusters(t *testing.T) {
	var parents [2]string
	all := t.TempDir()
	for day := range parents {
		run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, Latency: 9e-6, Day: uint64(day)})
		run.Environment = record.Environment{Hostname: "cluster of 3 nodes", Kernel: "6.18.0", CPUs: 12}
		parents[day] = filepath.Join(all, run.ID)
		writeRecord(t, parents[day], run, trials)
	}
	const says = "the cluster: not known whether it is the same"
	_, err := runCompare(parents[0], parents[1])
	if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), parents[1]+": it cannot be compared with "+
		parents[0]+": they differ in "+says) {
		t.Errorf("%v", err)
	}
	out, err := runCompare(parents[0], parents[1], "--anyway")
	if text := strings.Join(strings.Fields(out), " "); err != nil || strings.Count(text, says) != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	was := stderr
	t.Cleanup(func() { stderr = was })
	var said bytes.Buffer
	stderr = &said
	if out, err := runCompare("--history", all); err != nil || !strings.Contains(out, "1 run") ||
		!strings.Contains(said.String(), "skipped 1 of 2 runs") || !strings.Contains(said.String(), says) {
		t.Errorf("%v, %q\n%s", err, &said, out)
	}
}

// TestHistoryNamesInvalid: the runs that a history leaves out because they are invalid are named.
func TestHistoryNamesInvalid(t *testing.T) {
	parent := writeRuns(t, 0, 9e-6, 9e-6)
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, Latency: 9e-6, Day: 2})
	for i := range trials {
		trials[i].Validity = record.Validity{Failed: "it did not start"}
	}
	invalid := filepath.Join(parent, run.ID)
	writeRecord(t, invalid, run, trials)
	was := stderr
	t.Cleanup(func() { stderr = was })
	for _, c := range []struct {
		args []string
		runs string
		says string
	}{
		{nil, "2 runs", "left out: " + invalid + ": the run is invalid: "},
		{[]string{"--anyway"}, "3 runs", ""},
	} {
		var said bytes.Buffer
		stderr = &said
		out, err := runCompare(append([]string{"--history", parent}, c.args...)...)
		if err != nil || !strings.Contains(out, c.runs) || !strings.HasPrefix(said.String(), c.says) ||
			(c.says == "") != (said.Len() == 0) {
			t.Errorf("%v: %v, %q\n%s", c.args, err, &said, out)
		}
	}
}

// cutOff takes the end of the last trial off a run.
func cutOff(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, record.TrialsFile)
	info, err := os.Stat(path)
	if err := errors.Join(err, os.Truncate(path, info.Size()-10)); err != nil {
		t.Fatal(err)
	}
}

// TestPowerCommand: a plan says so if it is made from a partial run.
func TestPowerCommand(t *testing.T) {
	dir := writeRun(t, 24)
	run := func(args ...string) (string, error) { return runCommand(newPower(), args...) }
	out, err := run(dir, "--see", "2%,50%", "--all")
	if err != nil || !strings.Contains(out, "latency p50") || !strings.Contains(out, "50 %") {
		t.Errorf("%v\n%s", err, out)
	}
	var p analysis.Power
	if out, err = run(dir, "--json"); err != nil || json.Unmarshal([]byte(out), &p) != nil || len(p.Rows) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, r := range p.Rows {
		if len(r.Needs) != 3 || r.Base <= 0 {
			t.Errorf("%+v", r)
			continue
		}
		for i, n := range r.Needs {
			if n.Blocks != nil && (*n.Blocks < 6 || i > 0 && r.Needs[i-1].Blocks != nil && *n.Blocks > *r.Needs[i-1].Blocks) {
				t.Errorf("%s: %d blocks for %g", r.Metric, *n.Blocks, n.Part)
			}
		}
	}
	if len(p.Warnings) > 0 {
		t.Errorf("a whole run: %q", p.Warnings)
	}
	cutOff(t, dir)
	if out, err = run(dir); err != nil || !strings.Contains(out, "warning: the run is partial: ") ||
		!strings.Contains(out, "the last line was cut off") {
		t.Errorf("cut off: %v\n%s", err, out)
	}
	for _, c := range []struct {
		args []string
		code fault.Code
		says string
	}{
		{[]string{}, fault.Usage, "want one run directory"},
		{[]string{dir, "--see", "5"}, fault.Usage, `"5" is not a percentage`},
		{[]string{dir, "--power", "100%"}, fault.Usage, "is not a percentage between 50 and 99.9"},
		{[]string{writeRun(t, 9)}, fault.Invalid, "no difference to its baseline has an interval"},
	} {
		if out, err := run(c.args...); fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %q\n%s", c.args, err, c.says, out)
		}
	}
}
