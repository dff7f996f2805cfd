package exec

import (
	"os"
	osexec "os/exec"
	"strings"
	"testing"

	"tare/test/vm/guest"
)

// TestVerdictOfSuccess: a worker that exits early with status 0 gives a readable error.
func TestVerdictOfSuccess(t *testing.T) {
	guest.KernelFree(t)
	w := &worker{part: 3, cmd: &osexec.Cmd{Process: &os.Process{Pid: 7}}, s: new(shared)}
	err := w.verdict()
	if err == nil || !strings.HasPrefix(err.Error(), "worker 3 (process 7) exited unexpectedly (status 0)") ||
		strings.Contains(err.Error(), "%!") {
		t.Errorf("got %v", err)
	}
}
