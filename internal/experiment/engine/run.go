// Package engine turns a question into trials: a spec (package spec) becomes a plan of randomised blocks, and each
// trial of the plan runs with fresh processes in separate control groups, between the two edges of one window.
//
// Its rules: every baseline has an A/A twin, the seed is recorded, every trial is checked, and no trial is dropped
// silently.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
	"tare/internal/lib/text"
)

// Progress is the state of a run, reported before each trial and once more after the last.
type Progress struct {
	Done    int                 // attempts at trials that have ended
	Total   int                 // trials in the plan, as extended so far
	Blocks  int                 // in the plan, as extended so far
	Open    bool                // the plan may be extended, depending on the run's precision, its assertions or the time
	Next    record.PlannedTrial // the trial that begins now; zero value after the last
	Attempt int                 // the number of the attempt at Next, from 0
	Left    time.Duration       // estimated time left; for an open plan with a deadline, an upper bound
	Look    int                 // for an open plan, the number of blocks after which Enough is called next; 0: never
	Why     string              // what was missing, as Enough last said
	Note    string              // reported once: repeats of spoiled trials have been suspended, or resumed
	Last    *record.Trial       // the trial that has just ended; nil before the first
}

// Recorder stores the results of a run. *record.Writer implements it with a directory.
type Recorder interface {
	Append(record.Trial) error
	UpdateRun(record.Run) error
	WriteProfile(name string, data []byte) error
	Dir() string
}

// Runner runs an experiment.
type Runner struct {
	Machine  Machine
	Spec     *spec.Spec
	Record   *record.Run // holds the plan; Run extends an open plan here and in run.json, block by block
	Writer   Recorder
	Progress func(Progress)

	// Enough reports whether the trials so far are enough for the run to end. Its text says in what sense they are enough
	// ("precise"), or else what is missing. It is called after as many blocks as stats.NextLook returns, if the spec has a
	// precision or assertions.
	Enough func([]record.Trial) (bool, string)

	// Place, if not nil, runs the trials, and Machine need not be set. If nil, they run on Machine.
	Place Place

	// Longer is an estimate, before any trial has run, of how much longer a trial takes at Place than on Machine.
	Longer time.Duration

	trial   func(context.Context, *record.Trial) error // runs one trial; nil: Run sets it
	now     func() time.Time
	trials  []record.Trial
	each    time.Duration // mean time of an attempt; an estimate until the first has ended
	took    time.Duration // total time of all attempts
	began   time.Time
	look    int
	why     string
	again   time.Duration // time spent on further attempts
	vain    measured.Vain
	kept    int    // spoiled trials that were not run again because that would have been futile
	resting bool   // a note has said that repeats of spoiled trials are suspended
	note    string // for the next Progress
	ended   int
}

// Place is a place other than this machine where trials run. Trial runs one, at its level and with the seed of its
// arrivals, and records it in t. If the trial failed, the error says why, as t.Validity does. When Trial returns, even
// with an error, nothing of the trial is left.
type Place interface {
	Trial(ctx context.Context, level *spec.Spec, seed uint64, t *record.Trial) error
}

// MostAttempts is the maximum number of times that a trial is run: once, and up to twice more if it was spoiled.
const MostAttempts = 3

// The run is given up when every trial so far has failed, and either their number has reached hopelessAmongOthers, or
// the number of those that other programs did not disturb has reached hopeless. A trial that other programs disturbed
// may have failed because of them.
const (
	hopeless            = 3
	hopelessAmongOthers = 12
)

// Run runs the trials of the plan in turn, and appends each to the record when it ends. It returns the trials that
// were recorded.
//
// A trial that was spoiled by something other than the subject is run again after the other arms of its level in its
// block, within the spec's budget for repeats and unless that is futile. Every attempt is recorded.
//
// A trial that fails is recorded with its error and the run goes on, unless the run is given up: see hopeless and
// neverReady. Run then returns the error of the last trial. If the context ends, the trial under way is torn down and
// recorded as interrupted, and the error is the context's.
func (r *Runner) Run(ctx context.Context) (trials []record.Trial, err error) {
	if r.now == nil {
		r.now = time.Now
	}
	if r.trial == nil && r.Place != nil {
		r.trial = func(ctx context.Context, t *record.Trial) error {
			return r.Place.Trial(ctx, r.Spec.At(t.Factors).As(t.Arm), arrivalSeed(r.Record.Seed, t.PlannedTrial), t)
		}
	}
	if r.trial == nil {
		files, failure := files.NewScratch(files.LargeTemp(), "run")
		if failure != nil {
			return nil, failure
		}
		defer func() { err = errors.Join(err, files.Close()) }()
		prepared, failure := prepareRun(ctx, r.Spec, r.Machine.Self)
		if failure != nil {
			return nil, failure
		}
		defer func() { err = errors.Join(err, prepared.remove()) }() // the outer err, which Run returns
		r.trial = func(ctx context.Context, t *record.Trial) error { return r.onMachine(ctx, files.Path(), prepared, t) }
	}
	r.each = r.Estimate() / time.Duration(max(trialsOf(r.Spec), 1))
	r.began, r.vain = r.now(), measured.Vain{}
	if r.Spec.Open() && (r.Spec.Precision != nil || len(r.Spec.Assert) > 0) {
		r.look = stats.NextLook(0)
	}
	for at := 0; ; {
		if at == len(r.Record.Plan) {
			more, err := r.extend()
			if err != nil {
				return r.trials, err
			}
			if !more {
				break
			}
		}
		next := at + together(r.Record.Plan[at:])
		if err := r.level(ctx, r.Record.Plan[at:next]); err != nil {
			return r.trials, err
		}
		at = next
	}
	r.say(record.PlannedTrial{}, 0)
	return r.trials, nil
}

// extend adds a block to an open plan and reports whether it did. It adds none if the run knows enough, if another
// block would not end in time, or if the plan would have more than record.MaxTrials. The decision depends on the width
// of intervals, on which assertions are decided and on the clock, and never on whether a difference is resolved.
func (r *Runner) extend() (bool, error) {
	if !r.Spec.Open() {
		return false, nil
	}
	blocks := r.Record.Blocks
	stopped := ""
	if blocks == r.look && r.Enough != nil {
		enough, why := r.Enough(r.trials)
		r.look = stats.NextLook(blocks)
		if enough {
			stopped = fmt.Sprintf("%s after %s", why, quantity.Counted(blocks, "block"))
		} else {
			r.why = why
		}
	}
	longer := *r.Spec
	longer.Blocks = blocks + 1
	plan := Plan(&longer, r.Record.Seed) // begins with the current plan
	switch added := len(plan) - len(r.Record.Plan); {
	case stopped != "":
	case r.Spec.Until > 0 && r.now().Add(r.timeOf(added)).After(r.deadline()):
		stopped = fmt.Sprintf("time was up after %s", quantity.Counted(blocks, "block"))
	case len(plan) > record.MaxTrials:
		stopped = fmt.Sprintf("the plan reached its limit of %d trials, after %s", record.MaxTrials,
			quantity.Counted(blocks, "block"))
	}
	if stopped != "" {
		r.Record.Stopped = stopped
		return false, r.Writer.UpdateRun(*r.Record)
	}
	r.Record.Plan, r.Record.Blocks = plan, longer.Blocks
	return true, r.Writer.UpdateRun(*r.Record)
}

// deadline returns the time until which an open plan may be extended.
func (r *Runner) deadline() time.Time { return r.began.Add(r.Spec.Until) }

// together returns the number of trials at the beginning of a plan that belong to one block and level.
func together(plan []record.PlannedTrial) int {
	n := 1
	for n < len(plan) && plan[n].Block == plan[0].Block && maps.Equal(plan[n].Factors, plan[0].Factors) {
		n++
	}
	return n
}

// level runs the trials of one level in one block, and then repeats the spoiled ones. Further attempts keep the random
// order of the first attempts, and the arms of a level stay close together in time.
func (r *Runner) level(ctx context.Context, planned []record.PlannedTrial) error {
	lost := map[int][]string{} // metrics lost in the last attempt, by index of the trial
	for attempt := 0; attempt < MostAttempts && len(planned) > 0; attempt++ {
		var again []record.PlannedTrial
		for _, p := range planned {
			if attempt > 0 && !r.affords() {
				return nil
			}
			if attempt > 0 && !r.vain.Worth(lost[p.Index]) {
				if err := r.rest(); err != nil {
					return err
				}
				continue
			}
			t, err := r.one(ctx, p, attempt)
			if err != nil {
				return err
			}
			if attempt > 0 {
				r.again += t.Ended.Sub(t.Started)
			}
			if lost[p.Index] = measured.LostToOthers(t); len(lost[p.Index]) > 0 {
				again = append(again, p)
			}
		}
		planned = again
	}
	return nil
}

// rest records that a spoiled trial is not run again because that would be futile. It also sets a note for the user,
// unless the user has had one since repeats were last suspended.
func (r *Runner) rest() error {
	if !r.resting {
		r.resting = true
		r.note = fmt.Sprintf("%d further attempts in a row lost the same metrics; trials are not repeated for them "+
			"until one measures them", measured.Futile)
	}
	r.kept++
	were := "were"
	if r.kept == 1 {
		were = "was"
	}
	r.Record.NotRepeated = fmt.Sprintf("%s %s not run again, because %d further attempts in a row had lost the same "+
		"metrics", quantity.Counted(r.kept, "spoiled trial"), were, measured.Futile)
	return r.Writer.UpdateRun(*r.Record)
}

// affords reports whether there is time for one more repeat: within the budget of the spec, which is a fraction of the
// plan's time without repeats, and before the deadline of an open plan.
func (r *Runner) affords() bool {
	return r.each <= r.budget() && (r.Spec.Until == 0 || !r.now().Add(r.each).After(r.deadline()))
}

// budget returns the time left for further attempts.
func (r *Runner) budget() time.Duration {
	return time.Duration(r.Spec.Repeat*float64(r.timeOf(len(r.Record.Plan)))) - r.again
}

// timeOf estimates how long the given number of trials will take.
func (r *Runner) timeOf(trials int) time.Duration { return time.Duration(trials) * r.each }

// one runs a trial once and records it. An error ends the run; the failure of a trial alone is not an error.
func (r *Runner) one(ctx context.Context, p record.PlannedTrial, attempt int) (*record.Trial, error) {
	r.say(p, attempt)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := record.Trial{Schema: record.TrialSchema, PlannedTrial: p, Attempt: attempt}
	failure := r.trial(ctx, &t)
	if err := r.Writer.Append(t); err != nil {
		return nil, err
	}
	r.trials = append(r.trials, t)
	r.took += t.Ended.Sub(t.Started)
	r.each = r.took / time.Duration(len(r.trials))
	r.vain.Saw(&t)
	if r.resting && !r.vain.GaveUp() {
		r.resting, r.note = false, "a trial measured the lost metrics; spoiled trials are repeated again"
	}
	if attempt == 0 {
		r.ended++
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if failure != nil && r.neverReady(&t) {
		hint := cmp.Or(fault.HintOf(failure), "see the trials in "+r.Writer.Dir())
		return nil, fault.Wrap(failure, max(fault.CodeOf(failure), fault.Internal), "", hint,
			"the arm %s failed twice in the same way before it could be measured, so the run was given up", t.Arm)
	}
	if failure != nil && r.hopeless() {
		hint := cmp.Or(fault.HintOf(failure), "see the trials in "+r.Writer.Dir())
		return nil, fault.Wrap(failure, max(fault.CodeOf(failure), fault.Internal), "", hint,
			"the first %d trials failed, so the run was given up", len(r.trials))
	}
	return &t, nil
}

// neverReady reports whether the trial that has just failed shows that its arm cannot be measured: every attempt of
// the arm failed before its window, and at least two of its trials, including one at each level, failed in the same way
// without disturbance by other programs. It is always false for trials on nodes.
func (r *Runner) neverReady(failed *record.Trial) bool {
	levels, trials := map[string]bool{}, map[int]bool{}
	for i := range r.trials {
		switch t := &r.trials[i]; {
		case t.Arm != failed.Arm:
		case t.Validity.Failed == "" || t.Ledger != nil || len(t.Nodes) > 0:
			return false
		case t.Validity.Cause == "" && alike(t.Validity.Failed) == alike(failed.Validity.Failed):
			trials[t.Index], levels[fmt.Sprint(t.Factors)] = true, true
		}
	}
	return len(trials) > 1 && len(levels) >= len(r.Spec.Levels())
}

// alike returns an error message without its numbers, such as process IDs, ports and times, which differ each time.
func alike(message string) string { return digits().ReplaceAllString(message, "#") }

var digits = text.LazyRegexp(`[0-9]+`)

// hopeless reports whether every trial failed, often enough that other programs on the machine are not to blame.
func (r *Runner) hopeless() bool {
	undisturbed := 0
	for i := range r.trials {
		switch v := r.trials[i].Validity; {
		case v.Failed == "":
			return false
		case v.Cause == "":
			undisturbed++
		}
	}
	return undisturbed == hopeless || len(r.trials) == hopelessAmongOthers
}

// onMachine runs a trial on this machine, or on nodes if its spec has any.
func (r *Runner) onMachine(ctx context.Context, dir string, prepared *prepared, t *record.Trial) error {
	p := t.PlannedTrial
	level, seed := r.Spec.At(p.Factors), arrivalSeed(r.Record.Seed, p)
	if level.Nodes() > 0 {
		return newNodesTrial(r.Machine, level, p.Arm, seed).run(ctx, t)
	}
	x := newTrial(r.Machine, level.As(p.Arm).WithCopies(), p, t.Attempt, dir, seed)
	x.prepared, x.keep = prepared, r.Writer.WriteProfile
	return x.run(ctx, t)
}

// say reports progress: before an attempt at the trial next, or after the last trial if next is the zero value.
func (r *Runner) say(next record.PlannedTrial, attempt int) {
	goesOn := next.Arm != ""
	p := Progress{
		Done: len(r.trials), Total: len(r.Record.Plan), Blocks: r.Record.Blocks,
		Open: r.Spec.Open() && goesOn, Next: next, Attempt: attempt, Look: r.look, Why: r.why, Note: r.note,
	}
	r.note = ""
	if n := len(r.trials); n > 0 {
		p.Last = &r.trials[n-1]
	}
	if goesOn {
		p.Left = r.estimate()
	}
	r.Progress(p)
}

// estimate returns how long the rest of the run will take: the trials of the plan, and repeats, as frequent as so far,
// within their budget. An open plan with a deadline takes until the deadline, or until the end of the block that is
// under way if that is later.
func (r *Runner) estimate() time.Duration {
	rest := r.timeOf(len(r.Record.Plan) - r.ended)
	if r.Spec.Open() {
		if r.Spec.Until > 0 {
			return max(r.deadline().Sub(r.now()), rest)
		}
		return rest
	}
	if r.ended == 0 || r.vain.GaveUp() {
		return rest
	}
	expected := time.Duration(float64(rest) * float64(len(r.trials)-r.ended) / float64(r.ended))
	return rest + max(0, min(expected, r.budget()))
}

// arrivalSeed returns the seed of the arrivals in a trial. All arms of a block have the same arrivals at a level, so
// their effect on latency cancels out of the differences. A further attempt at a trial has the same arrivals as the
// first, because it takes the place of the first in the differences.
func arrivalSeed(seed uint64, p record.PlannedTrial) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed, p.Block)
	for _, name := range slices.Sorted(maps.Keys(p.Factors)) {
		fmt.Fprintf(h, "%q%q", name, p.Factors[name])
	}
	return h.Sum64()
}
