package experiment

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tare/internal/fault"
	"tare/internal/record"
)

// Progress is said before each trial, and once more after the last.
type Progress struct {
	Done   int                 // trials that have ended
	Total  int                 // trials of the plan
	Blocks int                 // of the plan
	Next   record.PlannedTrial // the trial that begins now; zero after the last
	Left   time.Duration       // estimated, for what is not done
	Last   *record.Trial       // the trial that has just ended; null before the first
}

// Run runs the trials of run.Plan, one after the other, and appends each to w as it ends. It returns those that were recorded.
//
// A trial that fails is recorded with its error and the run goes on, save when the first three all fail: then nothing works, and the
// error is that of the last. When the context ends, the trial under way is taken down and recorded as interrupted, and the error
// is the context's.
func Run(ctx context.Context, m Machine, s *Spec, run record.Run, w *record.Writer, progress func(Progress)) ([]record.Trial, error) {
	defer os.Remove(filepath.Join(w.Dir(), servicesFile)) // of the last trial; it need not have been written
	dir, err := filepath.Abs(w.Dir())
	if err != nil {
		return nil, fmt.Errorf("finding the run directory: %w", err)
	}
	const hopeless = 3
	var trials []record.Trial
	left := timer{each: startLead + s.Warmup + s.Duration + typicalOverhead}
	for i, p := range run.Plan {
		say := Progress{Done: i, Total: len(run.Plan), Blocks: run.Blocks, Next: p, Left: left.of(len(run.Plan) - i)}
		if i > 0 {
			say.Last = &trials[i-1]
		}
		progress(say)
		if err := ctx.Err(); err != nil {
			return trials, err
		}
		t := record.Trial{Schema: record.TrialSchema, PlannedTrial: p}
		level, seed := s.At(p.Factors).As(p.Arm), arrivalSeed(run.Seed, p)
		var failure error
		if level.nodes() > 0 {
			failure = (&nodesTrial{machine: m, spec: level, seed: seed}).run(ctx, &t)
		} else {
			failure = (&trial{machine: m, spec: level.copies(), index: p.Index, arm: p.Arm, dir: dir, seed: seed}).run(ctx, &t)
		}
		left.add(t.Ended.Sub(t.Started))
		if err := w.Append(t); err != nil {
			return trials, err
		}
		trials = append(trials, t)
		if err := ctx.Err(); err != nil {
			return trials, err
		}
		if failure != nil && len(trials) == hopeless && !slices.ContainsFunc(trials, func(t record.Trial) bool { return t.Validity.Failed == "" }) {
			return trials, fault.Wrap(failure, max(fault.CodeOf(failure), fault.Internal), "", mendOr(failure, "see the trials in "+w.Dir()), "the first %d trials failed, so the run was given up", hopeless)
		}
	}
	progress(Progress{Done: len(trials), Total: len(run.Plan), Blocks: run.Blocks, Last: &trials[len(trials)-1]})
	return trials, nil
}

func mendOr(err error, otherwise string) string {
	if mend := fault.MendOf(err); mend != "" {
		return mend
	}
	return otherwise
}

// arrivalSeed is the seed of the arrivals in a trial. All arms of a block have the same arrivals at a level, so that what the arrivals
// do to latency cancels out of the differences.
func arrivalSeed(seed uint64, p record.PlannedTrial) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed, p.Block)
	for _, name := range slices.Sorted(maps.Keys(p.Factors)) {
		fmt.Fprintf(h, "%q%q", name, p.Factors[name])
	}
	return h.Sum64()
}

// timer estimates what is left from what trials took: the plan's own figure until there are some.
type timer struct {
	each  time.Duration
	sum   time.Duration
	count int
}

func (t *timer) add(took time.Duration) {
	t.sum, t.count = t.sum+took, t.count+1
	t.each = t.sum / time.Duration(t.count)
}

func (t *timer) of(trials int) time.Duration { return time.Duration(trials) * t.each }

// Interrupted says whether err is that of a run that was told to end before its time.
func Interrupted(err error) bool { return errors.Is(err, context.Canceled) }
