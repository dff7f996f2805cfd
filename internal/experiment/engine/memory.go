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
// Where the machine does not support this, only the kernel's counters remain, and they do not name the process.
func (x *trial) watchMemory() {
	if x.spec.BoundsMemory() {
		x.killed, _ = oom.Open()
	}
}

// outOfMemory says which processes of the trial were killed because memory was short, by this machine's kernel or by
// that of a guest; empty: none.
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

// partOf is whose a group is, in words.
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

// partNamed is an application or a load in words, and the path of its group; empty where it has none.
func (x *trial) partNamed(name string) (who, group string) {
	_, role := x.part(name)
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.groups[path.Join(kind.WorkGroup, name)]; g != nil {
		group = g.Path()
	}
	return measured.NewRole(role, name).Words(name), group
}
