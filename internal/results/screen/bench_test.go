package screen

import "testing"

// BenchmarkTick measures the cost of a tick for the screen with 3,000 control groups, all of them shown as lines:
// reading the ledger, the history, sorting and drawing.
func BenchmarkTick(b *testing.B) {
	m := newModel(80, 24, hostile(0))
	keys(m, "3j<enter>")
	l := hostile(1)
	for b.Loop() {
		m.Update(Tick{Picture: OfLedger(l)})
		m.View()
	}
}
