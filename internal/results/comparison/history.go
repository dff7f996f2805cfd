package comparison

import (
	"cmp"
	"math"
	"slices"

	"tare/internal/lib/stats"
)

// HistorySchema names the JSON form of Course.
const HistorySchema = "tare.history/v1"

// Course is the history of an experiment over its runs.
type Course struct {
	Schema     string `json:"schema"`
	Experiment string `json:"experiment"`
	Runs       []Ref  `json:"runs"` // in the order in which they began
	Lines      []Line `json:"lines"`
}

// Line is the history of one metric of one arm at one level over the runs.
type Line struct {
	Of
	Points []Point `json:"points"` // one for each run that has the effect, by the latest metric.Definition.Rule
	Shifts []Shift `json:"shifts"`

	LeftOut []int `json:"left_out,omitempty"` // indexes in Runs of runs that have the effect by another rule
}

// Point is the effect of one run with its own interval, as a ratio to the baseline of the run or in the unit of the
// metric.
type Point struct {
	Run   int     `json:"run"` // index in Runs
	Value float64 `json:"value"`
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
}

// Shift is a change of a line's level, found by stats.ChangePoints.
type Shift struct {
	Run    int     `json:"run"`    // the first run at the new level
	Before float64 `json:"before"` // the mean effect of the runs at the previous level; the geometric mean for ratios
	After  float64 `json:"after"`
}

// MinShiftRuns is the minimum number of runs in which a shift can be found.
const MinShiftRuns = 10

// Over returns the history of an experiment over its runs, of which there must be at least one. The seed is for the
// random orders with which stats.ChangePoints tests for shifts.
func Over(sources []Source, seed uint64) Course {
	sources = distinct(sources)
	c := Course{
		Schema: HistorySchema, Experiment: sources[0].Run.Experiment, Runs: refs(sources), Lines: []Line{},
	}
	all := sourcesOf(sources)
	for _, k := range keysOf(all) {
		rule := latest(all, k)
		scale := scaleOf(all, k, rule)
		line := Line{Points: []Point{}}
		var series []float64
		var found []effect
		for run, s := range all {
			if s.otherwise(rule, k) {
				line.LeftOut = append(line.LeftOut, run)
			}
			has, _ := effects([]source{s}, k, rule, scale)
			for _, e := range has {
				of := on(e.of, scale)
				line.Points = append(line.Points, Point{run, shown(e.Value, scale), *of.Lo, *of.Hi})
				series, found = append(series, e.Value), append(found, e)
			}
		}
		if len(found) == 0 {
			continue
		}
		line.Of = newOf(k, scale, found)
		line.Shifts = shifts(line, series, seed)
		c.Lines = append(c.Lines, line)
	}
	slices.SortStableFunc(c.Lines, func(a, b Line) int { return cmp.Compare(a.Rank, b.Rank) })
	return c
}

// shown converts an effect for output: ratios are computed as logarithms.
func shown(v float64, scale Scale) float64 {
	if scale == Ratio {
		return math.Exp(v)
	}
	return v
}

func shifts(line Line, series []float64, seed uint64) []Shift {
	found := []Shift{}
	at := stats.ChangePoints(series, seed)
	for i, from := range at {
		begin, end := 0, len(series)
		if i > 0 {
			begin = at[i-1]
		}
		if i+1 < len(at) {
			end = at[i+1]
		}
		found = append(found, Shift{
			Run: line.Points[from].Run, Before: shown(average(series[begin:from]), line.Scale),
			After: shown(average(series[from:end]), line.Scale),
		})
	}
	return found
}

func average(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}
