package analysis

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/stats"
)

// PowerSchema names the JSON form of Power.
const PowerSchema = "tare.power/v1"

// Power says how many blocks later runs of an experiment need to detect differences of several sizes, judged by the
// noise of one run.
type Power struct {
	Schema     string     `json:"schema"`
	Experiment string     `json:"experiment"`
	Power      float64    `json:"power"` // the probability of detecting a difference that is there
	Blocks     int        `json:"blocks"`
	PerBlock   float64    `json:"block_seconds"` // mean duration of a block
	Rows       []PowerRow `json:"rows"`
	Warnings   []string   `json:"warnings,omitempty"` // about the run and its record
}

// PowerRow is one metric at one level, for the arm that resolves the least.
type PowerRow struct {
	Metric   string            `json:"metric"`
	Unit     string            `json:"unit"`
	Rank     int               `json:"rank"`
	Arm      string            `json:"arm"`
	Factors  map[string]string `json:"factors"`
	Headline bool              `json:"headline"`
	Base     float64           `json:"base"`  // the baseline's absolute value
	Half     float64           `json:"half"`  // half-width of the interval of the difference after N blocks
	N        int               `json:"n"`     // blocks in which it was measured
	Needs    []Need            `json:"needs"` // one for each size that was asked for

	independent float64 // what Half would be if blocks were independent
}

// Need holds the number of blocks that resolve a difference of some size. Part is that size as a fraction of the
// baseline's value. Blocks is nil if more than 10,000 blocks are needed.
type Need struct {
	Part   float64 `json:"part"`
	Blocks *int    `json:"blocks"`
	// Dependent is the number of blocks needed if neighbouring blocks depend on each other as much as the run's
	// intervals allow for. It is nil if it is not larger than Blocks, or larger than 10,000.
	Dependent *int     `json:"blocks_if_dependent,omitempty"`
	Seconds   *float64 `json:"seconds"` // time that the number of blocks in Blocks takes
}

// PowerOf returns the power of later runs like this one, judged by its noise. Differences from a baseline value that is
// 0 or unknown are left out, because their size cannot be given as a fraction of that value.
func PowerOf(run record.Run, trials []record.Trial, parts []float64, power float64) (*Power, error) {
	s, err := Summarize(run, trials)
	if err != nil {
		return nil, err
	}
	p := &Power{
		Schema: PowerSchema, Experiment: run.Experiment, Power: power, Blocks: s.Blocks, PerBlock: secondsPerBlock(trials),
		Rows: []PowerRow{},
	}
	if s.Partial {
		p.Warnings = append(p.Warnings, fmt.Sprintf("the run is partial: %d of %d planned trials were done", s.Trials.Done,
			s.Trials.Planned))
	}
	if !s.Valid {
		p.Warnings = append(p.Warnings, "the run is invalid: "+strings.Join(s.InvalidReasons, "; "))
	}
	type key struct{ metric, level string }
	base := map[key]float64{}
	for _, e := range s.Estimates {
		if e.Arm == record.Direct && e.Component == "" {
			base[key{e.Metric, record.LevelKey(e.Factors)}] = math.Abs(e.Value)
		}
	}
	at := map[key]int{}
	for _, e := range s.Estimates {
		k := key{e.Metric, record.LevelKey(e.Factors)}
		d := e.Difference
		if d == nil || d.Lo == nil || e.Component != "" || e.Withheld != "" || e.Method == PooledMethod || !(base[k] > 0) {
			continue
		}
		row := PowerRow{
			Metric: e.Metric, Unit: e.Unit, Rank: e.Rank, Arm: e.Arm, Factors: e.Factors, Base: base[k], Half: d.half(),
			N: d.N, Headline: slices.Contains(s.Headlines, e.Metric), independent: d.independent(),
		}
		if i, seen := at[k]; !seen {
			at[k] = len(p.Rows)
			p.Rows = append(p.Rows, row)
		} else if was := p.Rows[i]; row.independent*math.Sqrt(float64(row.N)) > was.independent*math.Sqrt(float64(was.N)) {
			p.Rows[i] = row
		}
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		for _, part := range parts {
			need := Need{Part: part}
			if need.Blocks, need.Dependent = r.blocks(part*r.Base, power); need.Blocks != nil {
				need.Seconds = new(math.Round(float64(*need.Blocks) * p.PerBlock))
			}
			r.Needs = append(r.Needs, need)
		}
	}
	slices.SortStableFunc(p.Rows, func(a, b PowerRow) int { return a.Rank - b.Rank })
	return p, nil
}

// blocks returns how many blocks resolve a difference of some size: the number if blocks are independent, and the
// number with the dependence for which the interval was widened, nil if it is not larger. A pilot run estimates this
// dependence poorly, and one with too few blocks does not estimate it at all, so plans use the independent number.
func (r PowerRow) blocks(size, power float64) (independent, dependent *int) {
	n, ok := stats.PlannedBlocks(r.N, r.independent, size, power)
	switch {
	case ok:
		independent = &n
	case r.Half == 0:
		return new(stats.MinBlocks), nil
	default:
		return nil, nil
	}
	if most, ok := stats.PlannedBlocks(r.N, r.Half, size, power); ok && most > n {
		dependent = &most
	}
	return independent, dependent
}

// independent returns half the width that the interval had before it was widened for dependent blocks.
func (d *Difference) independent() float64 {
	if d.Effective == nil || !(*d.Effective > 0) {
		return d.half()
	}
	return d.half() * math.Sqrt(min(1, *d.Effective/float64(d.N)))
}
