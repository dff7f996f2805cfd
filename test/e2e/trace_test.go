package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/test/binary"
	"tare/test/long"
)

// traced is the beginning of a spec of tracers. Its gates about time are off, because the counts of events do not
// depend on how busy the machine is.
const traced = `name: traced
question: What becomes of events?
blocks: 1
warmup: 0s
duration: %s
sampling: 97
loads: {execs: {kind: exec, rate: %s}}
gates: {rate: 0, lag: 60s, drift: 1000, throttled: 1h}
arms:
`

// faultyTracer builds the faulty tracers of test/tracers.
func faultyTracer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tracers")
	if err := binary.Program(path, "./test/tracers"); err != nil {
		t.Fatal(err)
	}
	return path
}

// trace runs a spec, which must end with exit code 0 or the first of codes, and returns its trials by arm, its output
// and its directory.
func trace(t *testing.T, spec string, codes ...int) (map[string]record.Trial, output, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	o := command{args: []string{"run", specFile(t, spec), "--out", dir, "--seed", "3"},
		timeout: 5 * time.Minute}.start(t).wait(t)
	if expected := append(codes, 0); o.code != expected[0] && o.code != 0 {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	trials := map[string]record.Trial{}
	for _, tr := range c.Trials {
		trials[tr.Arm] = tr
		if e := tr.Events; e != nil && (e.Generated == 0 && !starved(tr) || e.Generated != e.Counted || e.Missed != 0) {
			t.Errorf("%s: the load made %d, and the kernel counted %d and missed %d", tr.Arm, e.Generated, e.Counted, e.Missed)
		}
	}
	return trials, o, dir
}

func shown(e *record.Events) string {
	text, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestFaultyTracers: whatever a tracer does wrong shows in the counts, each fault in another way, and what it does
// right does not.
func TestFaultyTracers(t *testing.T) {
	long.Test(t, "30 s: tracers that lie in six ways")
	needsRoot(t)
	leavesNothing(t)
	faulty := faultyTracer(t)
	spec := fmt.Sprintf(traced, "1s", "4000")
	kinds := []string{"drop", "more", "die", "late", "boast", "flood"}
	for _, kind := range kinds {
		spec += fmt.Sprintf("  %s: {subject: command, command: \"%s %s {self} subject exectrace --cgroup={cgroup_dir} "+
			"--ring=64MiB\", ready: '^exectrace: ready', lines: '^\\{', lost-lines: '^Lost ([0-9]+) events'}\n", kind,
			faulty, kind)
	}
	spec += "  good: {subject: exectrace, ring: 64MiB}\n"
	spec += "  wide: {subject: command, command: \"{self} subject exectrace --ring=64MiB\", ready: '^exectrace: ready', " +
		"lines: '^\\{', scope: machine}\n"
	trials, _, _ := trace(t, spec)

	const each = 1000 // as in test/tracers
	for _, arm := range slices.Concat([]string{record.Direct, record.AA, "good", "wide"}, kinds) {
		tr := trials[arm]
		e := tr.Events
		if arm == "die" {
			if want := "tracers ended during the trial: exit status 1; its last words: "; !strings.Contains(tr.Validity.Failed,
				want) || !strings.Contains(tr.Validity.Failed, "out of ideas after 1000 events") {
				t.Errorf("die: %+v", tr.Validity)
			}
			continue
		}
		if !tr.Validity.Valid || e == nil {
			t.Errorf("%s: %+v", arm, tr.Validity)
			continue
		}
		if arm == record.Direct || arm == record.AA {
			if e.Delivered != nil || e.Expected != nil || e.SaidLost != nil {
				t.Errorf("%s has no tracer: %s", arm, shown(e))
			}
			continue
		}
		if arm == "wide" { // what others exec while the counts are read can be on either side
			if *e.Expected != e.Counted+e.Elsewhere || *e.AtMost < *e.Expected || tr.Metrics["events_lost"] != 0 ||
				tr.Metrics["events_extra"] != 0 {
				t.Errorf("wide: %s", shown(e))
			}
			continue
		}
		lost, extra := int64(tr.Metrics["events_lost"]), int64(tr.Metrics["events_extra"])
		var wantLost, wantExtra int64
		switch of := (e.Offset.Counted + e.Counted) / each; arm {
		case "drop":
			wantLost = of
		case "more":
			wantExtra = of
		}
		if *e.Expected != e.Counted || lost != wantLost || extra != wantExtra {
			t.Errorf("%s: %d lost, %d too many, want %d and %d: %s", arm, lost, extra, wantLost, wantExtra, shown(e))
		}
		// in the other arms, some events are late if the tracer does not get its CPU
		if part := float64(*e.Late) / float64(e.Counted); arm == "late" && part < 0.5 {
			t.Errorf("late: %d came late: %s", *e.Late, shown(e))
		}
		unsaid, says := tr.Metrics["events_unsaid"]
		switch arm {
		case "good":
			if !says || unsaid != 0 {
				t.Errorf("good: it says nothing, or what is not so: %s", shown(e))
			}
		case "boast":
			if !says || unsaid != 100 {
				t.Errorf("boast: it says that it lost 100: %s", shown(e))
			}
		default:
			if says {
				t.Errorf("%s: it says nothing of what it lost, and that is taken for %g: %s", arm, unsaid, shown(e))
			}
		}
		if c := tr.Counts["events_lost_share"]; int64(c.In) != wantLost || int64(c.Of) != e.Counted {
			t.Errorf("%s: to be pooled are %+v", arm, c)
		}
	}
}

// TestHeldTracer: a tracer that cannot run for 2 s in a storm loses events, and its own count of them is right to the
// event.
func TestHeldTracer(t *testing.T) {
	long.Test(t, "15 s: a tracer that is stopped in the middle of a storm")
	needsRoot(t)
	leavesNothing(t)
	spec := fmt.Sprintf(traced, "3s", "storm")
	spec += fmt.Sprintf("  held: {subject: command, command: \"%s stop {self} subject exectrace --cgroup={cgroup_dir} "+
		"--ring=64KiB\", ready: '^exectrace: ready', lines: '^\\{', lost-json: lost}\n", faultyTracer(t))
	trials, _, _ := trace(t, spec)
	tr := trials["held"]
	if !tr.Validity.Valid || tr.Events == nil || tr.Events.SaidLost == nil {
		t.Fatalf("%+v, %s", tr.Validity, shown(tr.Events))
	}
	if lost := tr.Metrics["events_lost"]; lost == 0 || tr.Metrics["events_unsaid"] != 0 ||
		tr.Metrics["events_extra"] != 0 || float64(*tr.Events.SaidLost) != lost {
		t.Errorf("%s", shown(tr.Events))
	}
	if in := tr.Counts["lossy_trial_share"]; in != (record.Count{In: 1, Of: 1}) {
		t.Errorf("a trial with losses counts as %+v", in)
	}
}

// TestAbsentTracers: an arm whose tracer is not installed is left out, and every form of the report says so; where it
// may not be missing, the run does not begin.
func TestAbsentTracers(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	leavesNothing(t)
	spec := fmt.Sprintf(traced, "2s", "100") + "  good: {subject: exectrace}\n  gone: {subject: command, command: " +
		"no-such-tracer-anywhere, lines: '', optional: true}\n"
	const says = "no-such-tracer-anywhere: not installed"
	trials, o, dir := trace(t, spec)
	if _, ran := trials["gone"]; ran || len(trials) != 3 {
		t.Errorf("%d arms ran", len(trials))
	}
	if !strings.Contains(o.stderr, "the arm gone is left out: "+says) ||
		!strings.Contains(strings.Join(strings.Fields(o.stdout), " "), "the arm gone did not run: "+says) {
		t.Errorf("it is not said: %s", o)
	}
	for _, format := range []string{"md", "html", "json", "bench"} {
		if r := tare(t, "report", dir, "--format", format); r.code != 0 || !strings.Contains(r.stdout, says) {
			t.Errorf("the report as %s does not say it: %s", format, r)
		}
	}
	var s analysis.Summary
	text, err := os.ReadFile(filepath.Join(dir, record.SummaryFile))
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || !strings.Contains(s.Absent["gone"], says) {
		t.Errorf("the summary has %v, %v", s.Absent, err)
	}
	c, err := record.Read(dir)
	if err != nil || !strings.Contains(c.Run.Absent["gone"], says) || c.Run.Environment.Subjects["exectrace"] == "" {
		t.Errorf("the record has %v and %v, %v", c.Run.Absent, c.Run.Environment.Subjects, err)
	}

	o = tare(t, "run", specFile(t, strings.Replace(spec, ", optional: true", "", 1)), "--out",
		filepath.Join(t.TempDir(), "out"))
	if o.code != int(fault.Machine) || !strings.Contains(o.stderr, says) || !strings.Contains(o.stderr, "optional: true") {
		t.Errorf("without it: %s", o)
	}
}

// TestBpftrace: bpftrace, if it is installed, is measured like any other tracer.
func TestBpftrace(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	trials, o, _ := trace(t, fmt.Sprintf(traced, "500ms", "300")+"  bpftrace: {subject: bpftrace, optional: true}\n")
	tr, ran := trials["bpftrace"]
	if !ran {
		if !strings.Contains(o.stderr, "the arm bpftrace is left out: bpftrace: not installed; apt-get install bpftrace") {
			t.Fatal(o)
		}
		t.Skip("bpftrace is not installed")
	}
	e := tr.Events
	if tr.Validity.Failed != "" || e == nil || e.Delivered == nil {
		t.Fatalf("%+v", tr.Validity)
	}
	if *e.Delivered != e.Counted || *e.Offset.Delivered != e.Offset.Counted {
		t.Errorf("%s", shown(e))
	}
	for metric, least := range map[string]float64{
		"bpf_seconds_per_kiloevent": 1e-9, "agent_cpu_seconds_per_kiloevent": 1e-9, "rss_peak_bytes": 10 << 20,
		"map_bytes": 1,
	} {
		tellsOrVoided(t, tr, metric)
		if v, ok := tr.Metrics[metric]; ok && v < least {
			t.Errorf("%s is %g", metric, v)
		}
	}
}
