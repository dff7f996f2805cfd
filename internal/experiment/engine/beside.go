package engine

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// groupPaths returns the paths of the control groups in the hierarchy that counts CPU time. It returns nil if there is
// no such hierarchy, and nil with a warning if its groups cannot be listed.
func (x *trial) groupPaths() map[string]bool {
	h, ok := x.machine.Cgroups.CPU()
	if !ok {
		return nil
	}
	ids, err := h.IDs()
	if err != nil {
		x.Warn(measured.WarnUnseen, "it is not known which control groups were made while the trial was under way: %v", err)
		return nil
	}
	paths := map[string]bool{}
	for _, path := range ids {
		paths[path] = true
	}
	return paths
}

// warnOfBeside warns of control groups outside the trial that did not exist before the trial: another program, such as
// a container engine or a service manager, may have made them for a command of the trial.
func (x *trial) warnOfBeside(before map[string]bool) {
	if _, launches := x.own.(kind.Launcher); before == nil || launches { // a runtime makes groups anywhere
		return
	}
	own := []string{x.treePath()}
	for path := range x.roles {
		own = append(own, path)
	}
	if found := besides(x.record.Ledger, before, own); len(found) > 0 {
		x.Warn(record.MadeBeside, "%s", strings.Join(found, ", "))
	}
}

// besides describes the topmost control groups of a ledger that used CPU time and did not exist before the trial. It
// leaves out groups at and below the paths in own, and the groups of any run of tare. It returns at most three, in
// descending order of CPU time.
func besides(l *ledger.Ledger, before map[string]bool, own []string) (found []string) {
	const named, little = 3, 0.001 // groups, and seconds of CPU time
	var groups []ledger.Cgroup
	for _, g := range l.Cgroups {
		if g.CPUSeconds == nil || *g.CPUSeconds < little || before[g.Path] || strings.HasPrefix(g.Path, "/tare-") ||
			slices.ContainsFunc(own, func(path string) bool { return cgroup.Within(g.Path, path) }) {
			continue
		}
		groups = append(groups, g)
	}
	for _, g := range groups { // sorted by CPU time in a ledger, largest first
		inside := slices.ContainsFunc(groups, func(o ledger.Cgroup) bool {
			return o.Path != g.Path && cgroup.Within(g.Path, o.Path)
		})
		if !inside && len(found) < named {
			found = append(found, fmt.Sprintf("%.200s, which used %.3f s of CPU time", g.Path, *g.CPUSeconds))
		}
	}
	return found
}
