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
func TestMendWithoutRights(t *testing.T) {
	const mend = "boot Linux 5.7"
	mendOf := func(err error) string {
		return New(Status{Mend: mend}, func() (string, error) { return "", err }).Status().Mend
	}
	refused := fmt.Errorf("opening: %w", unix.EPERM)
	rights.Without(t, func() {
		if got := mendOf(refused); !strings.HasPrefix(got, "run as root") || !strings.HasSuffix(got, mend) {
			t.Errorf("without rights: %q", got)
		}
		if got := mendOf(errors.New("no such event")); got != mend {
			t.Errorf("of what the kernel lacks: %q", got)
		}
	})
	if !proc.Capable(unix.CAP_SYS_ADMIN) {
		t.Skip("needs CAP_SYS_ADMIN")
	}
	if got := mendOf(refused); got != mend {
		t.Errorf("with all rights: %q", got)
	}
}
