package proxy

import (
	"os"
	"strings"
	"testing"
)

// A process whose parent ended before the signal was set finds out. The signal is the one that the test itself has.
func TestEndWith(t *testing.T) {
	if err := endWith(os.Getppid(), parentSignal); err != nil {
		t.Errorf("with its parent: %v", err)
	}
	if err := endWith(os.Getpid(), parentSignal); err == nil || !strings.Contains(err.Error(), "ended while") {
		t.Errorf("with another parent: got %v, want an error", err)
	}
	if parent != os.Getppid() {
		t.Errorf("the parent is %d, want %d", parent, os.Getppid())
	}
}
