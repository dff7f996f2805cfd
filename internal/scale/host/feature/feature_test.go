package feature

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
	"tare/test/rights"
)

// TestUntried: Untried returns the status of a probe that leaves something behind, without probing.
func TestUntried(t *testing.T) {
	fails := func() (string, error) { panic("it was probed") }
	s, leaves := New(Status{Name: "a", Leaves: "modules"}, fails).Untried()
	if !leaves || !s.Untried || s.Available || s.Detail != "not tried: it may leave modules" {
		t.Errorf("%+v, %v", s, leaves)
	}
	if s, leaves = New(Status{Name: "b"}, fails).Untried(); leaves {
		t.Errorf("%+v leaves nothing", s)
	}
}

// If rights are missing, the hint does not blame the kernel.
func TestHintWithoutRights(t *testing.T) {
	const hint = "boot Linux 5.7"
	hintOf := func(err error) string {
		return New(Status{Hint: hint}, func() (string, error) { return "", err }).Status().Hint
	}
	refused := fmt.Errorf("opening: %w", unix.EPERM)
	rights.Without(t, func() {
		if got := hintOf(refused); !strings.HasPrefix(got, "run as root") || !strings.HasSuffix(got, hint) {
			t.Errorf("without rights: %q", got)
		}
		if got := hintOf(errors.New("no such event")); got != hint {
			t.Errorf("of what the kernel lacks: %q", got)
		}
	})
	if !proc.Capable(unix.CAP_SYS_ADMIN) {
		t.Skip("needs CAP_SYS_ADMIN")
	}
	if got := hintOf(refused); got != hint {
		t.Errorf("with all rights: %q", got)
	}
}
