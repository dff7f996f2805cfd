package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// InitialPIDNamespace is the inode number of the machine's initial PID namespace, in which every process has a PID
// (PROC_PID_INIT_INO in include/linux/proc_ns.h, since Linux 3.8; in include/uapi/linux/nsfs.h since 6.18).
const InitialPIDNamespace = 0xEFFFFFFC

// initialTimeNamespace is the inode number of the initial time namespace, which process 1 is in (PROC_TIME_INIT_INO).
const initialTimeNamespace = 0xEFFFFFFA

// Identity identifies a process uniquely for observers in any PID namespace of this machine, because a PID means
// something only in its own namespace. Namespaces that exist at the same time have different inode numbers. A later
// namespace can reuse the number, but a process in it cannot have both the same PID and the same start time.
type Identity struct {
	PID       int    // in its own PID namespace
	Start     uint64 // Process.Start, as read by a process that is in its time namespace
	Namespace uint64 // inode number of its PID namespace; 0 if that was not recorded
}

// String returns n<namespace>-p<pid>-t<start>, without the namespace if that was not recorded or is the machine's
// initial one.
func (id Identity) String() string {
	if id.Namespace == 0 || id.Namespace == InitialPIDNamespace {
		return fmt.Sprintf("p%d-t%d", id.PID, id.Start)
	}
	return fmt.Sprintf("n%d-p%d-t%d", id.Namespace, id.PID, id.Start)
}

// Identify returns the identity of this process.
func (f FS) Identify() (Identity, error) {
	pid := os.Getpid()
	b, err := os.ReadFile(f.path("proc/self/stat")) // /proc may be of another PID namespace, where we have another PID
	if err != nil {
		return Identity{}, about(pid, "stat", err)
	}
	p, err := parseProcess(b)
	if err != nil {
		return Identity{}, about(pid, "stat", err)
	}
	namespace, err := f.namespace("self", "pid")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without PID namespaces
		return Identity{}, about(pid, "ns/pid", err)
	}
	return Identity{PID: pid, Start: p.Start, Namespace: namespace}, nil
}

// Fate says whether an identified process is running.
type Fate int

// The fates. A process that is not visible from here is Unknown, because it may be alive.
const (
	Unknown Fate = iota
	Running
	Ended
)

// Find looks for a process, and returns its PID here if it is Running. Find returns Ended only if that is certain:
// every process of its PID namespace is visible from here, and the process is not among them or is a zombie.
//
// A process is visible from its own PID namespace and those above it, up to the machine's initial one
// (pid_namespaces(7)).
func (f FS) Find(id Identity) (pid int, fate Fate) {
	view, whole := f.view()
	if id.Namespace != 0 && id.Namespace == view {
		return id.PID, f.fate(id.PID, id)
	}
	if whole && id.Namespace == 0 && f.fate(id.PID, id) == Running {
		return id.PID, Running // most processes are in the initial namespace
	}
	pids, err := f.PIDs()
	if err != nil {
		return 0, Unknown
	}
	complete, fate := whole, Ended
	for _, pid := range pids {
		levels, err := f.pidLevels(pid)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			fate = Unknown
			continue
		}
		if id.Namespace != 0 {
			namespace, err := view, error(nil)
			if len(levels) > 1 || view == 0 {
				namespace, err = f.namespace(strconv.Itoa(pid), "pid")
			}
			if err == nil && namespace != id.Namespace {
				continue
			}
			complete = complete || err == nil // if one process of a namespace is visible, all are
		}
		if levels[len(levels)-1] != strconv.Itoa(id.PID) {
			continue
		}
		switch f.fate(pid, id) {
		case Running:
			return pid, Running
		case Unknown:
			fate = Unknown
		}
	}
	if !complete {
		fate = Unknown
	}
	return 0, fate
}

// view returns the PID namespace whose processes /proc shows, or 0 if unknown, and whether it is the initial one, in
// which every process of the machine has a PID.
func (f FS) view() (namespace uint64, whole bool) {
	if b, err := os.ReadFile(f.path("proc/self/status")); err == nil && len(levelsIn(b)) == 1 {
		namespace, _ = f.namespace("self", "pid")
	} else { // /proc is of a namespace above ours, or of one that we are not in
		pids, _ := f.PIDs()
		for _, pid := range pids {
			if levels, err := f.pidLevels(pid); err == nil && len(levels) == 1 {
				if namespace, err = f.namespace(strconv.Itoa(pid), "pid"); err == nil {
					break
				}
			}
		}
	}
	// If /proc hides processes of others (hidepid) from us, it hides process 1 as well.
	_, err := f.pidLevels(1)
	return namespace, err == nil && namespace == InitialPIDNamespace
}

// fate returns the fate of id, given the PID that it would have here.
func (f FS) fate(pid int, id Identity) Fate {
	p, err := f.Process(pid)
	switch {
	case errors.Is(err, ErrGone):
		return Ended
	case err != nil:
		return Unknown
	case !p.Alive():
		return Ended
	case p.Start == id.Start:
		return Running
	}
	// In a time namespace, the machine may appear to have booted at another time (time_namespaces(7)).
	own, err := f.namespace("self", "time")
	if errors.Is(err, os.ErrNotExist) && f.has("proc/self/ns") {
		return Ended // before Linux 5.6 there are no time namespaces
	}
	its, err2 := f.namespace(strconv.Itoa(pid), "time")
	if _, whole := f.view(); pid == 1 && whole { // process 1 may not let us read its namespace
		its, err2 = initialTimeNamespace, nil
	}
	if err != nil || err2 != nil || own != its {
		return Unknown
	}
	return Ended
}

// namespace returns the inode number of a namespace of a process, from a link such as "pid:[4026531836]".
func (f FS) namespace(process, kind string) (uint64, error) {
	to, err := os.Readlink(f.path("proc", process, "ns", kind))
	if err != nil {
		return 0, err
	}
	number, ok := strings.CutPrefix(strings.TrimSuffix(to, "]"), kind+":[")
	if !ok {
		return 0, fmt.Errorf("%q is not a namespace of kind %s", to, kind)
	}
	return strconv.ParseUint(number, 10, 64)
}

// pidLevels returns the PIDs of a process, at least one: in the PID namespace of /proc, in each one below it, and last
// in its own (NSpid in proc_pid_status(5)).
func (f FS) pidLevels(pid int) ([]string, error) {
	b, err := f.read(pid, "status")
	if err != nil {
		return nil, err
	}
	levels := levelsIn(b)
	if len(levels) == 0 {
		return nil, about(pid, "status", errors.New("no line NSpid"))
	}
	return levels, nil
}

func levelsIn(status []byte) []string {
	for line := range bytes.Lines(status) {
		if pids, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			return strings.Fields(string(pids))
		}
	}
	return nil
}
