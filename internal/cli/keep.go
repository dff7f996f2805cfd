package cli

import (
	"context"
	"slices"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/lib/privilege"
)

// keepOnly gives up all capabilities but some and those that everything about eBPF and sampling takes, if the process
// is there for this command alone. It is for commands that start nothing which could need others.
func keepOnly(ctx context.Context, some ...cap.Value) error {
	if ctx.Value(ownProcess{}) == nil {
		return nil
	}
	// CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON; somebody may have these without it.
	return privilege.Keep(slices.Concat(some, []cap.Value{cap.SYS_ADMIN, cap.BPF, cap.PERFMON, cap.SYSLOG})...)
}
