package analysis

import (
	"tare/internal/record"
	"tare/internal/stats"
)

// ConstantMethod is the method of a difference between twins of which every trial had the same value.
const ConstantMethod stats.Method = "the same in every trial of both twins"

// twins is what separates the A/A twins in one metric. With fewer pairs than an interval takes, because a trial of either was spoiled, a
// metric that was the same in every trial of both still shows that nothing does: so with memory and run time of programs where the
// baseline runs none. It takes as many trials of the baseline as an interval takes blocks.
func (t *table) twins(at factors, metric string, seed uint64) stats.Estimate {
	e := stats.Difference(t.pairs(at, record.AA, metric), seed)
	base, twin := t.column(at, record.Direct, metric), t.column(at, record.AA, metric)
	if e.HasInterval || len(base) < stats.MinBlocks || len(twin) == 0 {
		return e
	}
	for _, x := range append(base, twin...) {
		if x != base[0] {
			return e
		}
	}
	// Did half of the trials or more differ, six alike in a row would come in at most 1 of 64 runs.
	return stats.Estimate{HasInterval: true, Confidence: stats.Confidence, N: e.N, Method: ConstantMethod}
}
