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

// What is missing for want of rights is not blamed on the kernel.
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
