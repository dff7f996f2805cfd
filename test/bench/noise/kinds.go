package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
)

// kind is a promise that is tested repeatedly.
type kind struct {
	name    string
	promise string
	// quiet runs before the neighbour begins, and returns a value of the quiet machine with which run compares its own. It
	// is nil if nothing is compared.
	quiet   func(*repetition) (float64, error)
	run     func(*repetition) ([]outcome, error)
	figures []figure // in the table, after how often the promise held
}

// figure is one of an outcome's Values, and how the table shows it.
type figure struct {
	value string
	name  string
	scale float64
	unit  string
}

const (
	specQuickstart = "quickstart"
	specPlanted    = "test/bench/noise/planted.yaml"
	specAA         = "test/bench/aa/spec.yaml"
)

var kinds = []kind{
	{"quickstart", "`tare run quickstart` ends with 0, and eBPF time per connection is resolved", nil,
		quickstart, []figure{
			{"value", "eBPF time per connection", 1e6, "us"}, {"blocks", "blocks", 1, ""},
			{"retries", "trials run again", 1, ""},
			{"different", "twins called different, a run", 1, ""}, {"compared", "of comparisons, a run", 1, ""}}},
	{"paired", "the same, and within 10 % of what the machine gave just before, without a neighbour", quietQuickstart,
		paired, []figure{
			{"ratio", "of the quiet value", 100, "%"}, {"value", "beside it", 1e6, "us"}, {"quiet", "quiet", 1e6, "us"}}},
	{"planted50", "a planted delay of 50 us is in the interval of the p50 difference", nil, planted, plantedFigures},
	{"planted200", "a planted delay of 200 us is in the interval of the p50 difference", nil, planted, plantedFigures},
	{"aa", "no metric of the A/A twins is called different", nil, twins, []figure{
		{"different", "called different, a run", 1, ""}, {"compared", "compared, a run", 1, ""}}},
	{"calibrate", "`tare calibrate --quick` does not end with 5", nil,
		calibrate("", func(code int) bool { return code == 0 || code == 4 }), calibrateFigures},
	{"clock5", "with a clock 5 % fast it ends with 5", nil, calibrate("clock5", failed), calibrateFigures},
	{"dropsamples", "with the samples of one CPU dropped it ends with 5", nil, calibrate("dropsamples", failed),
		calibrateFigures},
	{"mapstwice", "with maps counted twice it ends with 5", nil, calibrate("mapstwice", failed), calibrateFigures},
	{"budget", "the CPU budget of an idle machine closes within 2 %", nil, budget(0), budgetFigures},
	{"budget-loaded", "the CPU budget of a busy machine closes within 2 %", nil, budget(1), budgetFigures},
}

var (
	plantedFigures = []figure{{"value", "difference", 1e6, "us"}, {"width", "width of the interval", 1e6, "us"},
		{"resolved", "resolved", 1, ""}, {"blocks", "blocks", 1, ""}}
	calibrateFigures = []figure{{"exit0", "ended with 0", 1, ""}, {"failed", "out of tolerance", 1, ""},
		{"unjudged", "not judged", 1, ""}}
	budgetFigures = []figure{{"remainder", "remainder", 100, "%"}}
)

func failed(code int) bool { return code == 5 }

// repetition is one run of a kind.
type repetition struct {
	ctx  context.Context
	tare string
	out  string // directory that tare writes the run to
	seed uint64
	kind string
	base float64 // result of kind.quiet
	exit int     // exit code of the latest tare command
}

// outcome returns a new outcome of one kind, with the latest exit code.
func (r *repetition) outcome(kind string) outcome {
	return outcome{Kind: kind, Exit: r.exit, Values: map[string]float64{}}
}

// command runs tare to its end, and returns what it printed. It returns an error if tare cannot run at all (exit codes
// 1 to 3, or a signal); any other exit code is an outcome.
func (r *repetition) command(env []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Minute) // stops a command that hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, r.tare, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // on SIGINT, tare removes what it created
	cmd.WaitDelay = 30 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("running tare: %w", err)
	}
	if r.exit = cmd.ProcessState.ExitCode(); r.exit < 0 || slices.Contains([]int{1, 2, 3}, r.exit) {
		return nil, fmt.Errorf("tare %v ended with %d: %s", args, r.exit, stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// experiment runs a spec and reads its summary. note adds to an outcome what holds for the whole run: the number of
// retries and, for an invalid run, the reason.
func (r *repetition) experiment(spec string) (s *analysis.Summary, note func(*outcome), err error) {
	if _, err := r.command(nil, "run", spec, "--out", r.out, "--seed", strconv.FormatUint(r.seed, 10)); err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(filepath.Join(r.out, record.SummaryFile))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the summary: %w", err)
	}
	s = new(analysis.Summary)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, nil, fmt.Errorf("reading the summary: %w", err)
	}
	contents, err := record.Read(r.out)
	if err != nil {
		return nil, nil, err
	}
	retries := 0.0
	for _, t := range contents.Trials {
		if t.Attempt > 0 {
			retries++
		}
	}
	return s, func(o *outcome) {
		o.Values["retries"] = retries
		if !s.Valid && len(s.InvalidReasons) > 0 {
			o.Withheld = s.InvalidReasons[0]
		}
	}, nil
}

// difference records in the outcome how one metric of one arm differs from the baseline, and returns the difference, or
// nil if the run has none.
func (o *outcome) difference(s *analysis.Summary, arm, metric string) *analysis.Difference {
	i := slices.IndexFunc(s.Estimates, func(e analysis.Estimate) bool { return e.Arm == arm && e.Metric == metric })
	if i < 0 || s.Estimates[i].Difference == nil {
		return nil
	}
	d := s.Estimates[i].Difference
	o.Values["value"], o.Values["blocks"], o.Values["resolved"] = d.Value, float64(d.N), 0
	if d.Resolved {
		o.Values["resolved"] = 1
	} else if o.Withheld == "" {
		o.Withheld = d.Unresolved
	}
	if d.Lo != nil && d.Hi != nil {
		o.Values["lo"], o.Values["hi"], o.Values["width"] = *d.Lo, *d.Hi, *d.Hi-*d.Lo
	}
	return d
}

func quickstart(r *repetition) ([]outcome, error) {
	s, note, err := r.experiment(specQuickstart)
	if err != nil {
		return nil, err
	}
	o := r.outcome(r.kind)
	note(&o)
	d := o.difference(s, "kernelmesh", "bpf_seconds_per_connection")
	o.Held = o.Exit == 0 && d != nil && d.Resolved
	o.twins(s)
	return []outcome{o}, nil
}

// quietQuickstart is the eBPF time per connection, in seconds, that paired compares with.
func quietQuickstart(r *repetition) (float64, error) {
	outcomes, err := quickstart(r)
	if err != nil {
		return 0, err
	}
	value, ok := outcomes[0].Values["value"]
	if !ok || value <= 0 {
		return 0, fmt.Errorf("the quiet run has no eBPF time per connection: %s", outcomes[0].Withheld)
	}
	return value, nil
}

// paired compares quickstart beside the neighbour with quickstart on the quiet machine just before, so that little but
// the neighbour differs: within an hour, what the hypervisor gives the machine changes the time of a program by half.
func paired(r *repetition) ([]outcome, error) {
	outcomes, err := quickstart(r)
	if err != nil {
		return nil, err
	}
	o := &outcomes[0]
	o.Values["quiet"] = r.base
	if value, ok := o.Values["value"]; ok {
		o.Values["ratio"] = value / r.base
	}
	o.Held = o.Held && math.Abs(o.Values["ratio"]-1) <= 0.1
	return outcomes, nil
}

// median returns the metric that a run's answer about the median uses: latency while the machine was running, if the
// machine stood still too often, and latency otherwise.
func median(s *analysis.Summary) (metric string, running bool) {
	running = slices.ContainsFunc(s.Disturbed, func(d analysis.Disturbed) bool { return d.Running })
	if running {
		return "latency_running_p50_seconds", true
	}
	return "latency_p50_seconds", false
}

// planted returns an outcome for each of the two delays, which are two arms of one run.
func planted(r *repetition) ([]outcome, error) {
	s, note, err := r.experiment(specPlanted)
	if err != nil {
		return nil, err
	}
	var outcomes []outcome
	for _, arm := range []struct {
		kind, name string
		truth      float64
	}{{"planted50", "us50", 50e-6}, {"planted200", "us200", 200e-6}} {
		o := r.outcome(arm.kind)
		note(&o)
		o.Values["truth"] = arm.truth
		metric, running := median(s)
		if running {
			o.Values["running"] = 1
		}
		d := o.difference(s, arm.name, metric)
		o.Held = d != nil && d.Lo != nil && d.Hi != nil && *d.Lo <= arm.truth && arm.truth <= *d.Hi
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

func twins(r *repetition) ([]outcome, error) {
	s, note, err := r.experiment(specAA)
	if err != nil {
		return nil, err
	}
	o := r.outcome(r.kind)
	note(&o)
	o.twins(s)
	o.Held = o.Values["compared"] > 0 && o.Values["different"] == 0
	return []outcome{o}, nil
}

// twins notes how many comparisons of the A/A twins a run made, and which it called different.
func (o *outcome) twins(s *analysis.Summary) {
	different, compared := 0.0, 0.0
	for _, e := range s.Estimates {
		if e.Arm != record.AA || e.Difference == nil || e.Difference.Lo == nil || e.Value == 0 && e.Difference.Value == 0 {
			continue // a metric that is always 0, such as the map bytes of an arm without a subject, cannot be called different
		}
		compared++
		if e.Difference.Resolved {
			different++
			o.Different = append(o.Different, e.Metric)
		}
	}
	o.Values["different"], o.Values["compared"] = different, compared
}

func calibrate(fault string, held func(code int) bool) func(*repetition) ([]outcome, error) {
	return func(r *repetition) ([]outcome, error) {
		out, err := r.command([]string{"TARE_CALIBRATE_FAULT=" + fault}, "calibrate", "--quick", "--json")
		if err != nil {
			return nil, err
		}
		var report struct {
			Failed   float64 `json:"failed"`
			Unjudged float64 `json:"unjudged"`
		}
		if err := json.Unmarshal(out, &report); err != nil {
			return nil, fmt.Errorf("reading the calibration: %w", err)
		}
		o := r.outcome(r.kind)
		o.Values["failed"], o.Values["unjudged"], o.Values["exit0"] = report.Failed, report.Unjudged, 0
		if o.Exit == 0 {
			o.Values["exit0"] = 1
		}
		o.Held = held(o.Exit)
		return []outcome{o}, nil
	}
}

// budget weighs the machine while a process that it starts uses the given share of it.
func budget(share float64) func(*repetition) ([]outcome, error) {
	return func(r *repetition) ([]outcome, error) {
		if share > 0 {
			ctx, cancel := context.WithCancel(r.ctx)
			burn := exec.CommandContext(ctx, r.tare, "app", "burn", "--share", strconv.FormatFloat(share, 'g', -1, 64))
			burn.Cancel = func() error { return burn.Process.Signal(syscall.SIGTERM) }
			burn.WaitDelay = 10 * time.Second
			if err := burn.Start(); err != nil {
				cancel()
				return nil, fmt.Errorf("starting a load: %w", err)
			}
			defer func() { cancel(); _ = burn.Wait() }() // SIGTERM ended it
			time.Sleep(500 * time.Millisecond)           // until it burns
		}
		out, err := r.command(nil, "weigh", "--for", "3s", "--json")
		if err != nil {
			return nil, err
		}
		var l ledger.Ledger
		if err := json.Unmarshal(out, &l); err != nil {
			return nil, fmt.Errorf("reading the ledger: %w", err)
		}
		if l.CPU.Capacity <= 0 {
			return nil, errors.New("the ledger has no capacity")
		}
		o := r.outcome(r.kind)
		o.Values["remainder"], o.Values["steal"] = l.CPU.Unexplained/l.CPU.Capacity, l.CPU.Steal/l.CPU.Capacity
		o.Held = math.Abs(o.Values["remainder"]) <= 0.02
		return []outcome{o}, nil
	}
}
