package microvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/internal/fault"
	"tare/internal/host/cgroup"
	"tare/internal/host/proc"
	"tare/internal/pattern"
	"tare/internal/placement"
)

// newName is the name of a directory that is about to become a sandbox's.
func newName(creator process, id string) string {
	return fmt.Sprintf(",new-%d-%d-%s", creator.PID, creator.Start, id)
}

var newPattern = pattern.Lazy(`^,new-([0-9]{1,10})-([0-9]{1,20})-(.*)$`)

// destroy ends what is left of a sandbox's processes and removes all that it has on this machine.
func (box *sandbox) destroy() error {
	var errs []error
	orderly := box.Status == specs.StateStopped && box.Failure == ""
	for _, p := range []process{box.Shim, box.VMM, box.Virtiofsd} {
		errs = append(errs, p.kill())
	}
	if !orderly {
		errs = append(errs, box.killMarked())
	}
	for _, l := range box.Links {
		errs = append(errs, l.disconnect(box.Network))
	}
	box.removeSockets()
	if err := errors.Join(errs...); err != nil {
		return err // the directory says what there is, so it stays
	}
	if err := box.removeGroups(); err != nil {
		return err
	}
	return box.remove()
}

// kill ends a process and waits until it has ended.
func (p process) kill() error {
	if p.PID == 0 {
		return nil
	}
	if err := proc.Kill(p.PID, p.alive); err != nil {
		return err
	}
	ended, err := proc.Await(p.PID, p.alive, patience)
	if err == nil && !ended {
		err = fault.New(fault.Machine, "", "look at its state (ps -o pid,stat,wchan), then run 'tare clean'",
			"process %d does not end when killed", p.PID)
	}
	return err
}

// killMarked ends processes of the sandbox that nobody wrote down.
func (box *sandbox) killMarked() error {
	pids, err := proc.FS{}.PIDs()
	errs := []error{err}
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		p, err := processOf(pid)
		if err != nil {
			continue
		}
		env, _ := proc.FS{}.Environ(pid) // a process whose environment we may not read is not ours
		if slices.Contains(env, markVariable+"="+box.dir) {
			errs = append(errs, p.kill())
		}
	}
	return errors.Join(errs...)
}

// left says whether nobody will delete the sandbox: it was made in a run of Tare that has ended, its shim was killed,
// or whoever created it was.
func (box *sandbox) left(l *cgroup.Layout) bool {
	if box.Run != "" && placement.Ended(l, box.Run) {
		return true
	}
	if box.Shim.alive() || box.Creator.alive() && box.Status == specs.StateCreating {
		return false
	}
	return box.Status != specs.StateStopped || box.Failure != "" || box.VMM.PID == 0
}

// Clean removes sandboxes that were left behind, and gives their ids. Sandboxes with a shim that runs, and those that
// stopped as they should and wait to be deleted, are left alone unless the run of Tare that they were part of has
// ended.
func Clean(l *cgroup.Layout) (removed []string, err error) {
	boxes, err := sandboxes()
	errs := []error{err}
	for _, box := range boxes {
		if !box.left(l) {
			continue
		}
		if err := box.destroy(); err != nil {
			errs = append(errs, fmt.Errorf("removing the sandbox %s: %w", box.ID, err))
			continue
		}
		removed = append(removed, box.ID)
	}
	entries, _ := os.ReadDir(sandboxDir) // it may be gone
	for _, e := range entries {
		m := newPattern().FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		pid, err1 := strconv.Atoi(m[1])
		start, err2 := strconv.ParseUint(m[2], 10, 64)
		if err1 != nil || err2 != nil || (process{pid, start}).alive() {
			continue
		}
		box := &sandbox{ID: m[3], dir: filepath.Join(sandboxDir, e.Name())}
		if err := box.remove(); err != nil {
			errs = append(errs, fmt.Errorf("removing the sandbox %s: %w", box.ID, err))
			continue
		}
		removed = append(removed, box.ID)
	}
	_ = os.Remove(sandboxDir) // if nothing is in it
	return removed, errors.Join(errs...)
}
