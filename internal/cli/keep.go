package cli

import (
	"context"
	"slices"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/lib/privilege"
)

// keepOnly gives up all capabilities except the given ones and those that eBPF and sampling need, if the process runs
// only this command. It is for commands that start no process that could need other capabilities.
func keepOnly(ctx context.Context, some ...cap.Value) error {
	if ctx.Value(ownProcess{}) == nil {
		return nil
	}
	// CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, but a user may have only these two.
	return privilege.Keep(slices.Concat(some, []cap.Value{cap.SYS_ADMIN, cap.BPF, cap.PERFMON, cap.SYSLOG})...)
}
