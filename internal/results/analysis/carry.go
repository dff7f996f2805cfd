package analysis

import (
	"cmp"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// carriesOver is the reason why a difference is not resolved if the arm affects the trial after it.
const carriesOver = "carry-over: the arm changes the trial that runs right after it"

// findOrder finds which arm ran right before each trial, by the positions in its block. The first trial of a block has
// no predecessor. A repeated trial has no predecessor either, and is not a predecessor.
func (t *Table) findOrder(trials []record.Trial) {
	planned := attemptsOf(trials)
	slices.SortStableFunc(planned, func(a, b []record.Trial) int {
		return cmp.Or(cmp.Compare(a[0].Block, b[0].Block), cmp.Compare(a[0].Position, b[0].Position))
	})
	t.before = map[cell]string{}
	for i := 1; i < len(planned); i++ {
		last, next := planned[i-1], planned[i]
		if len(last) == 1 && len(next) == 1 && last[0].Block == next[0].Block && last[0].Position+1 == next[0].Position {
			t.before[cell{record.LevelKey(levelOf(next[0].Factors)), next[0].Arm, next[0].Block}] = last[0].Arm
		}
	}
}

// findCarryOver finds the arms that change the trial after them. An arm never follows itself at a level, so what it
// leaves behind affects its baseline more often than itself. The baseline and its A/A twin are identical: without
// carry-over, whichever of them runs right after the arm reads higher than the other as often as lower. A sign test
// over all levels decides (p < 1 %).
func (t *Table) findCarryOver() {
	t.carried = map[armMetric]bool{}
	for _, metric := range t.metrics {
		// Counts by arm of blocks in which the twin right after the arm read higher (true) or lower (false) than the other
		// twin.
		read := map[bool]map[string]int{true: {}, false: {}}
		for _, at := range t.Levels {
			level := record.LevelKey(at)
			for _, block := range t.blocks(level, hasMetric(metric), record.Direct, record.AA) {
				direct, aa := cell{level, record.Direct, block}, cell{level, record.AA, block}
				x, y := t.cells[direct].metrics[metric], t.cells[aa].metrics[metric]
				if before, other := t.before[direct], t.before[aa]; x != y && before != other {
					read[x > y][before]++
					read[y > x][other]++
				}
			}
		}
		for _, arm := range t.Subjects() {
			t.carried[armMetric{arm, metric}] = stats.SignTest(read[true][arm], read[false][arm]) < selection
		}
	}
}

// warnOfCarryOver names the arms that change the trial after them, and the metrics.
func (s *Summary) warnOfCarryOver(t *Table) {
	in := map[string][]string{}
	for _, metric := range t.metrics {
		for _, arm := range t.Subjects() {
			if t.carried[armMetric{arm, metric}] {
				in[arm] = append(in[arm], quantity.Label(metric))
			}
		}
	}
	for arm, labels := range lists.ByKey(in) {
		s.addWarning("%s changes the trial that runs right after it in %s, so its own difference to the baseline is not "+
			"resolved there: let it clean up when it stops, or take a longer warm-up", arm, strings.Join(labels, ", "))
	}
}
