package storebench

import (
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/mesh/store"
)

// TestFinished: operations that are under way at an edge of the window count where they end, so that a rate of few long
// ones is right on average.
func TestFinished(t *testing.T) {
	w := newWindow(100, 300, load.Service)
	for _, o := range [][2]int64{{0, 50}, {50, 150}, {150, 250}, {250, 350}} {
		w.add(o[0], o[1], store.Work{})
	}
	if w.Finished != 2 || w.Done != 2 {
		t.Errorf("%d finished, %d done; 2 end in the window, and 2 begin there", w.Finished, w.Done)
	}
}
