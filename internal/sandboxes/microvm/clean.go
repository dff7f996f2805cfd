package microvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/scale/host/proc"
)

// newName returns the temporary name that a sandbox's directory has until it is complete.
func newName(creator process, id string) string {
	namespace := ""
	if creator.Namespace != 0 && creator.Namespace != proc.InitialPIDNamespace {
		namespace = fmt.Sprintf("n%d-", creator.Namespace)
	}
	return fmt.Sprintf(",new-%s%d-%d-%s", namespace, creator.PID, creator.Start, id)
}

var newPattern = text.LazyRegexp(`^,new-(?:n([0-9]{10})-)?([0-9]{1,10})-([0-9]{1,20})-(.*)$`)

// parseNewName parses a name that newName returned. ok is false for any other name.
func parseNewName(name string) (creator process, id string, ok bool) {
	m := newPattern().FindStringSubmatch(name)
	if m == nil {
		return process{}, "", false
	}
	namespace, _ := strconv.ParseUint(m[1], 10, 64) // 0 if there is none
	pid, err1 := strconv.Atoi(m[2])
	start, err2 := strconv.ParseUint(m[3], 10, 64)
	return process{pid, start, namespace}, m[4], err1 == nil && err2 == nil
}

// destroy ends the remaining processes of a sandbox, and removes everything else that the sandbox has on this machine.
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
		return err // the directory stays, because it records what is left
	}
	if err := box.removeGroups(); err != nil {
		return err
	}
	return box.remove()
}

// kill ends a process and waits until it has ended.
func (p process) kill() error {
	pid, fate := p.find()
	if fate != proc.Running {
		return nil
	}
	meant := func() bool { now, fate := p.find(); return fate == proc.Running && now == pid }
	if err := proc.Kill(pid, meant); err != nil {
		return err
	}
	ended, err := proc.Await(pid, meant, patience)
	if err == nil && !ended {
		err = fault.New(fault.Machine, "", "look at its state (ps -o pid,stat,wchan), then run 'tare clean'",
			"process %d does not end when killed", pid)
	}
	return err
}

// killMarked kills processes that belong to the sandbox and are not in its state file.
func (box *sandbox) killMarked() error {
	pids, err := proc.FS{}.PIDs()
	errs := []error{err}
	left := 3 * time.Second // total time to wait for processes that are inside execve(2), and have no environment yet
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		p, err := processOf(pid)
		if err != nil {
			continue
		}
		// A process whose environment cannot be read does not belong to the sandbox.
		if dir, _, _ := (proc.FS{}).Getenv(pid, markVariable, &left); dir == box.dir {
			errs = append(errs, p.kill())
		}
	}
	return errors.Join(errs...)
}

// left reports whether the sandbox was left behind: its run of Tare has ended, or its shim (or, before there is a shim,
// its creator) was killed or failed before the sandbox had stopped in an orderly way.
func (box *sandbox) left(o kind.Owners) bool {
	what := "the sandbox " + box.ID
	if box.Run != "" && o.Ended(box.Run, what) {
		return true
	}
	if alive(box.Shim, o, box.Run, what) || box.Status == specs.StateCreating && alive(box.Creator, o, box.Run, what) {
		return false
	}
	return box.Status != specs.StateStopped || box.Failure != "" || box.VMM.PID == 0
}

// alive reports whether a process is running. If that is unknown, it returns true, and also reports to o that the
// sandbox (what) is left alone.
func alive(p process, o kind.Owners, run, what string) bool {
	_, fate := p.find()
	if fate == proc.Unknown {
		o.Leave(run, what)
	}
	return fate != proc.Ended
}

// Clean removes sandboxes that were left behind, and returns their ids. Unless their run of Tare has ended, it leaves
// alone sandboxes with a running shim, and sandboxes that have stopped in an orderly way and wait to be deleted.
func Clean(o kind.Owners) (removed []string, err error) {
	boxes, err := sandboxes()
	errs := []error{err}
	clean := func(id string, remove func() error) {
		if !o.Dry() {
			if err := remove(); err != nil {
				errs = append(errs, fmt.Errorf("removing the sandbox %s: %w", id, err))
				return
			}
		}
		removed = append(removed, id)
	}
	for _, box := range boxes {
		if box.left(o) {
			clean(box.ID, box.destroy)
		}
	}
	entries, _ := os.ReadDir(sandboxDir) // it may not exist
	for _, e := range entries {
		creator, id, ok := parseNewName(e.Name())
		if ok && !alive(creator, o, "", "the sandbox "+id) {
			box := &sandbox{ID: id, dir: filepath.Join(sandboxDir, e.Name())}
			clean(id, box.remove)
		}
	}
	if !o.Dry() {
		_ = os.Remove(sandboxDir) // it may not be empty
	}
	return removed, errors.Join(errs...)
}
