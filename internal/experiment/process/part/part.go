// Package part runs a command as an application or a load of a trial: in the part's control group, with a private
// directory.
package part

import (
	"context"
	"fmt"
	"os"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/scale/host/cgroup"
)

// Part is a command in a trial. The caller must close it, even after an error.
type Part struct {
	Trial kind.Trial
	Name  string // the name of the part

	group   kind.Group
	dir     string // its private directory, after Place
	running *process.Running
}

// Place makes the part's control group and its directory, and returns the values of the placeholders for them, with a
// free TCP port.
func (p *Part) Place() (process.Place, error) {
	place := process.Place{Self: p.Trial.Self()}
	var err error
	if p.group, err = p.Trial.PartGroup(p.Name); err != nil {
		return place, err
	}
	if p.dir, err = os.MkdirTemp(p.Trial.Dir(), p.Name+"-"); err != nil {
		return place, fault.Wrap(err, fault.Machine, p.Trial.Dir(), "make room, or set TMPDIR to a directory on another disk",
			"the files of %s cannot be written", p.Name)
	}
	place.Dir = p.dir
	if _, ok := p.Trial.Cgroups().V2(); ok {
		place.CgroupDir = p.group.V2Dir()
		place.CgroupPath = p.Trial.Cgroups().V2Path(place.CgroupDir)
		if place.CgroupID, err = cgroup.ID(place.CgroupDir); err != nil {
			return place, err
		}
	}
	place.Port, err = process.FreePort()
	return place, err
}

// Start starts the command in the group that Place has made, or inside the sandbox that the subject launches for the
// part. onEnd is as in process.Start.
func (p *Part) Start(ctx context.Context, c process.Command, onEnd func(error)) (*process.Running, error) {
	if h, ok := p.Trial.Cgroups().CPU(); ok {
		c.CgroupDir, _ = h.Dir(p.group.Path())
	}
	begin, err := p.Trial.Begin(ctx, p.Name, p.dir)
	if err != nil {
		return nil, err
	}
	p.running, err = process.Start(c, begin, onEnd)
	return p.running, err
}

// ServedElsewhere warns if a process outside the trial listens at an address of the part.
func (p *Part) ServedElsewhere(address string) { WarnServedElsewhere(p.Trial, p.group, address) }

// WarnServedElsewhere warns if a process outside the trial listens at the address of the part whose group is g. Such a
// process may be one that another program, such as a container engine, has started for the part's command.
func WarnServedElsewhere(t kind.Trial, g kind.Group, address string) {
	who, err := process.ServedElsewhere(t.Cgroups(), address, g.TreeMembers())
	switch {
	case err != nil:
		t.Warn(measured.WarnUnseen, "which process listens at %s is not known: %v", address, err)
	case who != "":
		t.Warn(measured.WarnStrays, "%s: what it uses is not known; have the trial start it, or observe it", who)
	}
}

// GroupPath returns the identity of the part's control group, as in the ledger.
func (p *Part) GroupPath() string { return p.group.Path() }

// Stop ends the command in the way that the command specifies.
func (p *Part) Stop() {
	if p.running != nil {
		p.running.Stop()
	}
}

// Close ends the command as Stop does, and removes its directory, but nothing that is mounted there.
func (p *Part) Close() error {
	p.Stop()
	if p.dir == "" {
		return nil
	}
	if err := files.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("removing the files of %s: %w", p.Name, err)
	}
	return nil
}
