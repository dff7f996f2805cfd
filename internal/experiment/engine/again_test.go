package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/pace"
	"tare/internal/scale/ledger"
)

// made is a runner with simulated trials; each takes its planned time by a simulated clock.
type made struct {
	*Runner
	t     *testing.T
	clock time.Time
	ran   []string // block arm attempt
}

func newMade(t *testing.T, s *spec.Spec, blocks int, result func(record.Trial) record.Validity) *made {
	t.Helper()
	m := &made{t: t, clock: time.Unix(1_000_000, 0)}
	first := *s
	first.Blocks = blocks
	run := record.Run{Schema: record.RunSchema, Experiment: s.Name, Seed: 1, Blocks: blocks, Plan: Plan(&first, 1),
		Until: s.Until.Seconds()}
	if s.Precision != nil {
		run.Precision = &record.Precision{Target: s.Precision.Target, Metrics: s.PreciseMetrics()}
	}
	w, err := record.Create(filepath.Join(t.TempDir(), "run"), run)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	m.Runner = &Runner{Spec: s, Record: &run, Writer: w, Progress: quiet, now: func() time.Time { return m.clock }}
	m.trial = func(_ context.Context, tr *record.Trial) error {
		m.ran = append(m.ran, fmt.Sprintf("%d %s %s %d", tr.Block, tr.Arm, tr.Factors["rate"], tr.Attempt))
		tr.Started = m.clock
		m.clock = m.clock.Add(time.Second)
		tr.Ended = m.clock
		tr.Metrics = map[string]float64{"latency_p50_seconds": 1}
		tr.Validity = result(*tr)
		if tr.Validity.Failed != "" {
			return errors.New(tr.Validity.Failed)
		}
		return nil
	}
	return m
}

// contents reads the record back.
func (m *made) contents() *record.Contents {
	m.t.Helper()
	c, err := record.Read(m.Writer.Dir())
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

func fine(record.Trial) record.Validity { return record.Validity{Valid: true} }

// spoiledTwice spoils all attempts at a trial but the last.
func spoiledTwice(tr record.Trial) record.Validity {
	if tr.Attempt < MostAttempts-1 {
		return spoiledBy(ledger.Hypervisor)
	}
	return record.Validity{Valid: true}
}

func spoiledBy(cause ledger.Cause) record.Validity {
	return record.Validity{Reasons: []record.Reason{{Gate: "lag", Message: "late", Cause: cause,
		Voids: []string{"latency_p50_seconds"}}}}
}

const sweptSpec = shortSpec + "factors: {client.rate: [100, 300]}\n"

// TestSpoiledTrialIsRunAgain: a spoiled trial is repeated in its block, after the other arms of its level, at most
// twice, and every attempt is recorded.
func TestSpoiledTrialIsRunAgain(t *testing.T) {
	s := mustParse(t, shortSpec)
	s.Repeat = 10
	m := newMade(t, s, 3, func(tr record.Trial) record.Validity {
		switch {
		case tr.Block == 0 && tr.Arm == record.AA && tr.Attempt == 0:
			return spoiledBy(ledger.Hypervisor)
		case tr.Block == 1 && tr.Arm == record.Direct:
			return spoiledBy(ledger.Unknown)
		case tr.Block == 2 && tr.Arm == "kernelmesh":
			return spoiledBy(ledger.Subject)
		}
		return record.Validity{Valid: true}
	})
	var attempts []int
	m.Progress = func(p Progress) { attempts = append(attempts, p.Attempt) }
	trials, err := m.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 9+1+2 || len(m.contents().Trials) != len(trials) || m.contents().Partial {
		t.Fatalf("%d trials, recorded %d, partial %v", len(trials), len(m.contents().Trials), m.contents().Partial)
	}
	if want := []string{"0 aa  1"}; !slices.Equal(m.ran[3:4], want) {
		t.Errorf("after the first block came %v, want %v", m.ran[3:4], want)
	}
	if want := []string{"1 direct  1", "1 direct  2"}; !slices.Equal(m.ran[7:9], want) {
		t.Errorf("after the second block came %v, want %v", m.ran[7:9], want)
	}
	for i, tr := range trials {
		if tr.Block == 2 && tr.Attempt > 0 {
			t.Errorf("a subject that was too slow was run again: %d", i)
		}
		if tr.Index != m.Record.Plan[tr.Index].Index || tr.Arm != m.Record.Plan[tr.Index].Arm {
			t.Errorf("attempt %d of trial %d is %+v", tr.Attempt, tr.Index, tr.PlannedTrial)
		}
	}
	if slices.Max(attempts) != 2 {
		t.Errorf("progress said attempts %v", attempts)
	}
}

// TestAgainWithinItsLevel: arms of a level stay close together in time.
func TestAgainWithinItsLevel(t *testing.T) {
	s := mustParse(t, sweptSpec)
	s.Repeat = 10
	m := newMade(t, s, 2, func(tr record.Trial) record.Validity {
		if tr.Attempt == 0 && tr.Arm == record.AA {
			return spoiledBy(ledger.Neighbour)
		}
		return record.Validity{Valid: true}
	})
	if _, err := m.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(m.ran) != 16 {
		t.Fatalf("%d attempts: %v", len(m.ran), m.ran)
	}
	for i := 0; i < 16; i += 4 { // three arms of a level, and the twin again
		var block string
		for k, ran := range m.ran[i : i+4] {
			f := strings.Fields(m.ran[i+k])
			if k == 0 {
				block = f[0]
			}
			if f[0] != block || k == 3 && (f[1] != record.AA || !strings.HasSuffix(ran, " 1")) {
				t.Errorf("%v", m.ran[i:i+4])
			}
		}
	}
	if !slices.ContainsFunc(m.Record.Plan, func(p record.PlannedTrial) bool { return p.Factors["client.rate"] == "100" }) {
		t.Error("nothing was swept")
	}
}

// TestBudgetOfFurtherAttempts: further attempts take no more than their part of the planned time.
func TestBudgetOfFurtherAttempts(t *testing.T) {
	for _, c := range []struct {
		repeat float64
		again  int
	}{{0, 0}, {0.5, 15}, {1, 30}, {10, 60}} { // of 30 trials of 1 s, each of them spoiled twice
		s := mustParse(t, shortSpec)
		s.Repeat = c.repeat
		m := newMade(t, s, 10, spoiledTwice)
		var most time.Duration
		m.Progress = func(p Progress) { most = max(most, p.Left) }
		trials, err := m.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(trials) - 30; n != c.again {
			t.Errorf("with repeat %g there were %d further attempts, want %d", c.repeat, n, c.again)
		}
		if limit := time.Duration((1 + c.repeat) * float64(30*time.Second)); most > limit {
			t.Errorf("with repeat %g %v were said to be left, and it can take %v", c.repeat, most, limit)
		}
	}
}

// TestFutileAttempts: after six further attempts in a row that were spoiled as well, no more are made until the first
// attempt at a trial succeeds. This is printed and recorded.
func TestFutileAttempts(t *testing.T) {
	const (
		stops = "6 further attempts in a row lost the same metrics; trials are not repeated for them until one " +
			"measures them"
		resumes = "a trial measured the lost metrics; spoiled trials are repeated again"
		rest    = " not run again, because 6 further attempts in a row had lost the same metrics"
	)
	always := func(record.Trial) record.Validity { return spoiledBy(ledger.Neighbour) }
	for _, c := range []struct {
		name     string
		blocks   int
		result   func(record.Trial) record.Validity
		again    int
		notes    []string
		recorded string
	}{
		{"steady noise", 10, always, 6, []string{stops}, "27 spoiled trials were" + rest},
		{"failures by others", 4, func(tr record.Trial) record.Validity {
			if tr.Block > 0 {
				return record.Validity{Failed: "it died", Cause: ledger.Neighbour}
			}
			return record.Validity{Valid: true}
		}, 6, []string{stops}, "6 spoiled trials were" + rest},
		{"exactly six", 1, always, 6, nil, ""},
		{"two in six come through", 10, func(tr record.Trial) record.Validity {
			if tr.Attempt == 2 && tr.Arm != "kernelmesh" {
				return record.Validity{Valid: true}
			}
			return spoiledBy(ledger.Neighbour)
		}, 60, nil, ""},
		{"a pause in block 4", 10, func(tr record.Trial) record.Validity {
			if tr.Block == 4 {
				return record.Validity{Valid: true}
			}
			return spoiledBy(ledger.Hypervisor)
		}, 12, []string{stops, resumes, stops}, "21 spoiled trials were" + rest},
		{"a result of the subject's in block 4", 10, func(tr record.Trial) record.Validity {
			if tr.Block == 4 && tr.Arm == "kernelmesh" {
				return spoiledBy(ledger.Subject)
			}
			return spoiledBy(ledger.Hypervisor)
		}, 12, []string{stops, resumes, stops}, ""},
		{"one metric is always lost, another in every fourth block", 8, func(tr record.Trial) record.Validity {
			v := spoiledBy(ledger.Neighbour)
			if tr.Block%4 == 3 && tr.Attempt == 0 && tr.Arm == "kernelmesh" {
				v.Reasons = append(v.Reasons, record.Reason{Gate: "errors", Message: "failed", Cause: ledger.Neighbour,
					Voids: []string{"bpf_seconds_per_connection"}})
			}
			return v
			// six futile ones in block 0, then one for the other metric in blocks 3 and 7
		}, 8, []string{stops}, "21 spoiled trials were" + rest},
		{"a failure is no success", 10, func(tr record.Trial) record.Validity {
			if tr.Block == 4 {
				return record.Validity{Failed: "it died"}
			}
			return spoiledBy(ledger.Hypervisor)
		}, 6, []string{stops}, "24 spoiled trials were" + rest},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := mustParse(t, shortSpec)
			s.Repeat = 10
			m := newMade(t, s, c.blocks, c.result)
			var notes []string
			m.Progress = func(p Progress) {
				if p.Note != "" {
					notes = append(notes, p.Note)
				}
			}
			trials, err := m.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n := len(trials) - 3*c.blocks; n != c.again {
				t.Errorf("%d further attempts, want %d: %v", n, c.again, m.ran)
			}
			if !slices.Equal(notes, c.notes) {
				t.Errorf("said %q, want %q", notes, c.notes)
			}
			got := m.contents().Run.NotRepeated
			if c.recorded != "" && got != c.recorded || (got != "") != slices.Contains(notes, stops) {
				t.Errorf("recorded %q, want %q", got, c.recorded)
			}
		})
	}
}

// TestFailedTrialsAgain: a failed trial is repeated only if others disturbed the machine, and an arm that never works
// is given up in any case.
func TestFailedTrialsAgain(t *testing.T) {
	s := mustParse(t, shortSpec)
	s.Repeat = 10
	for cause, want := range map[ledger.Cause]int{"": 6, ledger.Hypervisor: 6 + 2*2} {
		m := newMade(t, s, 2, func(tr record.Trial) record.Validity {
			if tr.Arm == "kernelmesh" {
				return record.Validity{Failed: "it died " + strings.Repeat("again", tr.Block), Cause: cause}
			}
			return record.Validity{Valid: true}
		})
		if trials, err := m.Run(t.Context()); err != nil || len(trials) != want {
			t.Errorf("by %q: %d attempts, want %d: %v", cause, len(trials), want, err)
		}
	}
	for _, c := range []struct {
		disturbed int // number of trials disturbed, from the first on
		works     int // the first trial that works
		want      int // trials
		givenUp   bool
	}{
		{0, 100, 3, true}, {2, 100, 5, true}, {100, 100, 12, true}, {3, 4, 12 + 3, false},
	} {
		n := 0
		m := newMade(t, s, 4, func(record.Trial) record.Validity {
			if n++; n >= c.works {
				return record.Validity{Valid: true}
			} else if n <= c.disturbed {
				return record.Validity{Failed: "it died", Cause: ledger.Hypervisor}
			}
			return record.Validity{Failed: "it died"}
		})
		if trials, err := m.Run(t.Context()); (err != nil) != c.givenUp || len(trials) != c.want {
			t.Errorf("%+v: %d trials: %v", c, len(trials), err)
		}
	}
}

// TestPlanGrows: a plan with more blocks begins like one with fewer.
func TestPlanGrows(t *testing.T) {
	s := mustParse(t, plannedSpec)
	var before []record.PlannedTrial
	for blocks := 1; blocks <= 20; blocks++ {
		longer := *s
		longer.Blocks = blocks
		plan := Plan(&longer, 42)
		if len(before) > 0 && !reflect.DeepEqual(plan[:len(before)], before) {
			t.Fatalf("the plan of %d blocks does not begin as that of %d", blocks, blocks-1)
		}
		before = plan
	}
}

// TestUntilPrecise: the precision is checked at the right times, and the run ends when it is reached, as its record
// says.
func TestUntilPrecise(t *testing.T) {
	s := mustParse(t, shortSpec+"precision: 5%\n")
	if s.Until != 30*time.Minute {
		t.Errorf("until %v", s.Until)
	}
	m := newMade(t, s, 1, fine)
	var looks []int
	m.Enough = func(trials []record.Trial) (bool, string) {
		looks = append(looks, len(trials)/3)
		if len(trials)/3 >= 18 {
			return true, "precise"
		}
		return false, "wide"
	}
	var last Progress
	open := 0
	m.Progress = func(p Progress) {
		last = p
		if p.Open {
			open++
		}
	}
	trials, err := m.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(looks, []int{12, 15, 18}) || len(trials) != 54 || m.Record.Stopped != "precise after 18 blocks" ||
		open != 54 || last.Why != "wide" {
		t.Errorf("looked after %v blocks, %d trials, stopped %q, progress %+v", looks, len(trials), m.Record.Stopped, last)
	}
	longer := *s
	longer.Blocks = 18
	if c := m.contents(); c.Run.Blocks != 18 || !slices.EqualFunc(c.Run.Plan, Plan(&longer, 1), sameTrial) ||
		c.Run.Stopped != m.Record.Stopped || c.Partial {
		t.Errorf("recorded: %d blocks, stopped %q, partial %v", c.Run.Blocks, c.Run.Stopped, c.Partial)
	}
}

// TestUntilTime: whole blocks are run until the time is up, and none that would not end in time.
func TestUntilTime(t *testing.T) {
	for _, c := range []struct {
		spec    string
		spoil   bool
		blocks  int
		stopped string
	}{
		{"until: 20s\n", false, 6, "time was up after 6 blocks"},                 // of 3 s
		{"precision: 5%\nuntil: 2m\n", false, 40, "time was up after 40 blocks"}, // checked, and never precise
		{"until: 1s\n", false, 1, "time was up after 1 block"},                   // the first runs in any case
		{"until: 20s\nrepeat: 1000%\n", true, 2, "time was up after 2 blocks"},   // further attempts are within it
	} {
		result := fine
		if c.spoil {
			result = spoiledTwice
		}
		m := newMade(t, mustParse(t, shortSpec+c.spec), 1, result)
		m.Enough = func([]record.Trial) (bool, string) { return false, "wide" }
		if _, err := m.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m.Record.Stopped != c.stopped || m.Record.Blocks != c.blocks || len(m.Record.Plan) != 3*c.blocks {
			t.Errorf("%q: %d blocks, %q", c.spec, m.Record.Blocks, m.Record.Stopped)
		}
		if took := m.clock.Sub(time.Unix(1_000_000, 0)); m.Spec.Until > 3*time.Second && took > m.Spec.Until {
			t.Errorf("%q took %v", c.spec, took)
		}
	}
}

// TestOpenRunInterrupted: an interrupted run is partial, even if all trials planned so far are done.
func TestOpenRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := newMade(t, mustParse(t, shortSpec+"until: 1h\n"), 1, fine)
	m.Progress = func(p Progress) {
		if p.Done == 3 {
			cancel()
		}
	}
	_, err := m.Run(ctx)
	c := m.contents()
	if !errors.Is(err, context.Canceled) || !c.Partial || c.Run.Stopped != "" {
		t.Errorf("%v, partial %v, stopped %q", err, c.Partial, c.Run.Stopped)
	}
}

func sameTrial(a, b record.PlannedTrial) bool {
	return a.Index == b.Index && a.Block == b.Block && a.Position == b.Position && a.Arm == b.Arm
}

// TestAgainOnTheMachine: a trial with the real processes, in whose window the witness saw stolen time, is repeated in
// groups with another name.
func TestAgainOnTheMachine(t *testing.T) {
	g := newGround(t)
	s := mustParse(t, tolerant(shortSpec))
	s.Repeat, g.again = 2, true
	windows, names := 0, map[string]bool{}
	g.machine.OpenWindow = func(ctx context.Context, at int64) (Window, error) {
		if err := pace.SleepUntil(ctx, at); err != nil {
			return nil, err
		}
		windows++
		dirs, _ := filepath.Glob(filepath.Join(v2(t, g.machine.Cgroups), fmt.Sprintf("tare-trial-*-p%d-*", os.Getpid())))
		for _, d := range dirs {
			names[filepath.Base(d)] = true
		}
		return stolenWindow{newEmptyWindow(at), windows == 2}, nil
	}
	c, trials, err := g.run(t.Context(), s, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 4 || trials[3].Attempt != 1 || trials[3].Index != trials[1].Index || trials[3].Block != 0 ||
		c.Partial {
		for _, tr := range trials {
			t.Logf("trial %d, attempt %d: %+v", tr.Index, tr.Attempt, tr.Validity)
		}
		t.Fatalf("%d trials, partial %v", len(trials), c.Partial)
	}
	// On a busy machine the trial may have tripped other gates, too.
	reasons := trials[1].Validity.Reasons
	at := slices.IndexFunc(reasons, func(r record.Reason) bool { return r.Gate == measured.GateThrottled.Name })
	r := reasons[max(at, 0)]
	if r.Gate != measured.GateThrottled.Name || r.Cause != ledger.Hypervisor || *r.CauseShare != 0.25 ||
		!slices.Contains(r.Voids, "latency_p50_seconds") || slices.Contains(r.Voids, "start_seconds") {
		t.Errorf("%+v", r)
	}
	if len(names) != 4 {
		t.Errorf("groups were %v", names)
	}
	if !slices.ContainsFunc(trials, func(tr record.Trial) bool { return tr.Validity.Valid }) {
		t.Error("no trial is valid")
	}
}

// stolenWindow is a window in which the hypervisor took a quarter of the CPU time, and a group without a limit was
// throttled.
type stolenWindow struct {
	emptyWindow
	stolen bool
}

func (w stolenWindow) CloseAt(ctx context.Context, at int64) (*ledger.Ledger, error) {
	l, err := w.emptyWindow.CloseAt(ctx, at)
	if err == nil && w.stolen {
		l.CPU = ledger.CPU{Capacity: 4, Steal: 1}
		dirs, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/unified/tare-trial-*-p%d-*", os.Getpid()))
		if len(dirs) == 0 {
			dirs, _ = filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/tare-trial-*-p%d-*", os.Getpid()))
		}
		for _, d := range dirs {
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: "/" + filepath.Base(d) + "/work/client",
				ThrottledSeconds: ptr(0.5)})
		}
	}
	return l, err
}

// TestNeverReady: an arm that fails in the same way before it can be measured, at every level, ends the run after the
// second time. One that works at some level, or that others disturbed, does not.
func TestNeverReady(t *testing.T) {
	const blocks = 4
	for name, c := range map[string]struct {
		spec   string
		result func(record.Trial) record.Validity
		most   int // trials; 0: all
	}{
		"always": {shortSpec, func(tr record.Trial) record.Validity {
			return failedAs(tr, fmt.Sprintf("set-up: pid %d: exit status 1", tr.Index))
		}, 6},
		"at every level": {sweptSpec, func(tr record.Trial) record.Validity { return failedAs(tr, "set-up: exit status 1") },
			6},
		"at one level": {sweptSpec, func(tr record.Trial) record.Validity {
			if tr.Factors["client.rate"] == "300" {
				return failedAs(tr, "set-up: exit status 1")
			}
			return record.Validity{Valid: true}
		}, 0},
		"in other ways": {shortSpec, func(tr record.Trial) record.Validity {
			return failedAs(tr, strings.Repeat("x", tr.Index))
		}, 0},
		"disturbed": {shortSpec, func(tr record.Trial) record.Validity {
			v := failedAs(tr, "set-up: exit status 1")
			if v.Failed != "" {
				v.Cause = ledger.Neighbour
			}
			return v
		}, 0},
	} {
		s := mustParse(t, c.spec)
		m := newMade(t, s, blocks, c.result)
		trials, err := m.Run(t.Context())
		if c.most == 0 {
			if err != nil || len(trials) < len(m.Record.Plan) {
				t.Errorf("%s: %d of %d trials, %v", name, len(trials), len(m.Record.Plan), err)
			}
			continue
		}
		want := "the arm kernelmesh failed twice in the same way before it could be measured"
		if err == nil || !strings.Contains(err.Error(), want) || len(trials) > c.most {
			t.Errorf("%s: %d trials, %v, want at most %d and %q", name, len(trials), err, c.most, want)
		}
	}
}

// failedAs returns the validity of a trial: failed with the given reason in one arm, and valid in the others.
func failedAs(tr record.Trial, why string) record.Validity {
	if tr.Arm != "kernelmesh" {
		return record.Validity{Valid: true}
	}
	return record.Validity{Failed: why}
}
