package exec

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/experiment/child"
)

// TestVerdictOfSuccess: a worker that exits early with status 0 gives a readable error.
func TestVerdictOfSuccess(t *testing.T) {
	w := &worker{part: 3, s: new(shared)}
	if err := child.Start(&w.process, child.Command{Argv: []string{"true"}}, child.Options{Name: "it"}); err != nil {
		t.Fatal(err)
	}
	defer w.process.Kill()
	<-w.process.Ended()
	err := w.verdict()
	want := fmt.Sprintf("worker 3 (process %d) exited unexpectedly (status 0)", w.process.PID())
	if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "%!") {
		t.Errorf("got %v", err)
	}
}
