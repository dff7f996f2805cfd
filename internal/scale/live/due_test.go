package live

import (
	"testing"
	"time"
)

// TestDue: with a tick every 10 s, each tick reads everything, even if an earlier one was late.
func TestDue(t *testing.T) {
	read := time.Now().Add(300 * time.Microsecond) // late
	if next := read.Add(allEvery - 200*time.Microsecond); !due(read, next) {
		t.Errorf("not due after %s", next.Sub(read))
	}
	if soon := read.Add(allEvery / 2); due(read, soon) {
		t.Errorf("due after %s", soon.Sub(read))
	}
}
