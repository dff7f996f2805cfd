package vm

import (
	"strings"
	"testing"
	"time"
)

// TestHang: a machine whose kernel complains again and again that a processor is stuck has hung, though its console
// grows.
func TestHang(t *testing.T) {
	const complaint = "[  437.012895] watchdog: BUG: soft lockup - CPU#1 stuck for 279s! [test:8166]\n"
	for _, c := range []struct {
		name    string
		quiet   time.Duration
		waited  time.Duration
		console string
		hung    bool
	}{
		{"at work", time.Second, 0, "", false},
		{"quiet for too long", silence + time.Second, 0, "", true},
		{"held up by the host", time.Minute, 0, strings.ReplaceAll(complaint, "279s", "26s"), false},
		{"held up for long", time.Minute, 4 * time.Minute, complaint, false},
		{"a processor is stuck", time.Minute, time.Minute, "booting\n" + complaint, true},
	} {
		if why := hang(c.quiet, c.waited, c.console); (why != "") != c.hung {
			t.Errorf("%s: %q", c.name, why)
		}
	}
	if said := ofKernel.ReplaceAllString("progress: 3 of 6\n"+complaint+"done\n"+strings.TrimSpace(complaint),
		""); said != "progress: 3 of 6\ndone\n" {
		t.Errorf("without the kernel's lines: %q", said)
	}
}
