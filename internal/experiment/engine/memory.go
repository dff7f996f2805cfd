package engine

import (
	"context"
	"path"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/scale/host/oom"
)

// watchMemory starts recording the processes that the kernel kills at a memory limit, if a part of the trial has one.
// Some machines do not support this; then there are only the kernel's counters, which do not name the process.
func (x *trial) watchMemory() {
	if x.spec.BoundsMemory() {
		x.killed, _ = oom.Open()
	}
}

// outOfMemory describes the processes of the trial that were killed because memory was short, by this machine's kernel
// or by the kernel of a sandbox. It returns "" if there are none.
func (x *trial) outOfMemory() string {
	if x.tree == nil {
		return ""
	}
	launcher, launches := x.own.(kind.Launcher)
	as := oom.Naming{Owner: x.partOf, Named: x.partNamed}
	if launches {
		as.Component = launcher.Component
	}
	var said []string
	if s := x.killed.Say(x.machine.Cgroups, x.tree.Path(), as); s != "" {
		said = append(said, s)
	}
	if launches {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, k := range launcher.KilledInside(ctx) {
			who, _ := x.partNamed(k.Part)
			said = append(said, k.In(who))
		}
	}
	return strings.Join(said, "; ")
}

// partOf describes the part to which a group belongs.
func (x *trial) partOf(group string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	for g := group; len(g) > 1; g = path.Dir(g) {
		if words := x.roles[g].Words(path.Base(g)); words != "" {
			return words
		}
	}
	return "the trial"
}

// partNamed describes an application or a load, and returns the path of its group, or "" if it has none.
func (x *trial) partNamed(name string) (who, group string) {
	_, role := x.part(name)
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.groups[path.Join(kind.WorkGroup, name)]; g != nil {
		group = g.Path()
	}
	return measured.NewRole(role, name).Words(name), group
}
