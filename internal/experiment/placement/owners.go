package placement

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// Owners decides whether the owners of trees have ended, so that the things that they left behind can be removed. It is
// for one goroutine. The caller must close it at the end.
//
// Things that a run made are removed only if the run's owner has provably ended: proc.FS.Find reports it, or no process
// holds the lock on the tree. If neither the owner's PID namespace nor the cgroup namespace of its tree is visible
// here, the owner may be alive: the things that it made are left alone, and Left lists them. Owners waits for an owner
// that has been killed.
type Owners struct {
	DryRun bool // change nothing, but report the things that would be removed as removed

	hs       []*cgroup.Hierarchy
	given    []string         // trees whose runs count as ended if their state is not visible here
	found    map[string]found // results of find, by tree
	settled  bool             // the owners of all trees have been judged since the last wait for one
	waitEnd  time.Time        // when the last wait for an owner that is ending must be over
	wouldEnd map[int]bool     // processes that a dry run treats as ended
	locks    []*os.File       // locks on trees whose owners have ended, held so that no other process takes them
	left     []Left
}

// found is the result of looking for the owner of a tree.
type found struct {
	pid    int // in this process's PID namespace, if the owner is visible there
	fate   proc.Fate
	ending bool // it was killed, but is still Running after a wait
}

// Left is something of a run that was left alone, because it is not known here whether the run has ended, or because
// the run's owner does not end.
type Left struct {
	What   string // such as "the network interface tare7n1"
	Tree   string
	Ending int // the pid of its owner, which has been killed but does not end; 0: another reason
}

// NewOwners returns an Owners for the trees that are visible here. The runs of the trees named in ended count as ended
// if their state is not visible here.
func NewOwners(l *cgroup.Layout, ended ...string) *Owners {
	return &Owners{hs: hierarchies(l), given: ended, found: map[string]found{}}
}

// CheckEnded returns an error with the code fault.Usage unless a name can be passed to NewOwners as ended: it must be
// the name of a tree, and not that of a run that is still going on.
func CheckEnded(l *cgroup.Layout, name string) error {
	id, ok := parseTreeName(name)
	if !ok {
		return fault.New(fault.Usage, name, "give a name as 'tare clean' prints it", "this is not the name of a run")
	}
	o := NewOwners(l)
	defer o.Close()
	if f := o.find(name, id); f.fate == proc.Running {
		return fault.New(fault.Usage, name, "end it first", "this run goes on (process %d)", f.pid)
	}
	return nil
}

// Began returns when the owner of a tree began, and false if that is not known or the name is not that of a tree.
func Began(tree string) (time.Time, bool) {
	id, ok := parseTreeName(tree)
	if !ok {
		return time.Time{}, false
	}
	ago, err := proc.FS{}.Since(id.Start)
	return time.Now().Add(-ago), err == nil
}

// Ended reports whether tree is the name of a tree whose owner has ended. Things other than control groups can bear the
// name of a run's tree, and may be removed if Ended returns true. If it is unknown whether the owner has ended, or if
// the owner was killed but does not end, Ended adds an entry to Left, in which the argument what describes the thing.
func (o *Owners) Ended(tree, what string) bool {
	id, ok := parseTreeName(tree)
	if !ok {
		return false
	}
	o.settle()
	switch f := o.await(tree, id); {
	case f.fate == proc.Ended:
		return true
	case f.fate == proc.Unknown:
		o.Leave(tree, what)
	case f.ending:
		o.leave(Left{What: what, Tree: tree, Ending: f.pid})
	}
	return false
}

// Dry returns DryRun.
func (o *Owners) Dry() bool { return o.DryRun }

// Leave records that something is left alone because it is not visible here whether it is still in use.
func (o *Owners) Leave(tree, what string) { o.leave(Left{What: what, Tree: tree}) }

func (o *Owners) leave(l Left) {
	if !slices.Contains(o.left, l) {
		o.left = append(o.left, l)
	}
}

// trees returns the names of the existing trees, with their owners.
func (o *Owners) trees() (map[string]proc.Identity, error) {
	all := map[string]proc.Identity{}
	var errs []error
	for _, h := range o.hs {
		entries, err := os.ReadDir(h.Mount)
		if err != nil {
			errs = append(errs, fmt.Errorf("looking for control groups left behind: %w", err))
		}
		for _, e := range entries {
			if id, ok := parseTreeName(e.Name()); ok && e.IsDir() {
				all[e.Name()] = id
			}
		}
	}
	return all, errors.Join(errs...)
}

// settle waits, before any owner is judged, for the owners of trees that are about to end. The processes that a run
// started are killed as its owner ends, and until then count as living; they may own trees too.
func (o *Owners) settle() {
	for !o.settled {
		o.settled = true // await clears this if it waits for an owner
		all, _ := o.trees()
		for tree, id := range all {
			o.await(tree, id)
		}
	}
}

// forgetRunning forgets the owners that were found alive. It is called when processes have ended, so that these owners
// are judged again.
func (o *Owners) forgetRunning() {
	maps.DeleteFunc(o.found, func(_ string, f found) bool { return f.fate == proc.Running && !f.ending })
	o.settled = false
}

// await does what find does, but waits for an owner that is ending. All waits together last no longer than patience.
func (o *Owners) await(tree string, id proc.Identity) found {
	f := o.find(tree, id)
	if f.fate == proc.Running && o.wouldEnd[f.pid] {
		f.fate = proc.Ended
	}
	if f.fate != proc.Running || f.ending || !(proc.FS{}).Ending(f.pid) {
		return f
	}
	if o.waitEnd.IsZero() {
		o.waitEnd = time.Now().Add(patience)
	}
	for (proc.FS{}).Ending(f.pid) {
		if time.Now().After(o.waitEnd) {
			f.ending = true
			o.found[tree] = f
			return f
		}
		time.Sleep(time.Millisecond)
	}
	o.forgetRunning() // this owner, and others that ended with it
	return o.find(tree, id)
}

// Left lists the things that have been left alone so far, although their runs may have ended.
func (o *Owners) Left() []Left { return o.left }

// Close releases the locks.
func (o *Owners) Close() {
	for _, f := range o.locks {
		_ = f.Close() // nothing was written
	}
	o.locks = nil
}

func (o *Owners) find(tree string, id proc.Identity) (f found) {
	if f, known := o.found[tree]; known {
		return f
	}
	defer func() { o.found[tree] = f }()
	pid, fate := proc.FS{}.Find(id)
	if fate == proc.Unknown {
		pid, fate = id.PID, o.byLock(tree)
	}
	if fate == proc.Unknown && slices.Contains(o.given, tree) {
		fate = proc.Ended
	}
	return found{pid: pid, fate: fate}
}

// byLock returns the fate of an owner that is not visible, by the lock that it holds on its tree while it lives. A
// result of Ended stays true until Close: an owner that has made its tree but not locked it yet waits until then, and
// finds the tree gone.
func (o *Owners) byLock(tree string) proc.Fate {
	var dirs []string
	var taken []*os.File
	fate := proc.Unknown // if the tree is not visible here
	for _, h := range o.hs {
		dir := filepath.Join(h.Mount, tree)
		f, err := lock(dir, unix.LOCK_EX)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			dirs, taken, fate = append(dirs, dir), append(taken, f), proc.Ended
			continue
		}
		fate = proc.Unknown
		if errors.Is(err, unix.EWOULDBLOCK) {
			fate = proc.Running
		}
		break
	}
	if fate == proc.Ended && !hidden(dirs) {
		o.locks = append(o.locks, taken...)
		return fate
	}
	for _, f := range taken {
		_ = f.Close() // nothing was written
	}
	if fate == proc.Ended {
		fate = proc.Unknown
	}
	return fate
}

// hidden reports whether the groups contain processes that are not visible here, so their owner is unknown.
func hidden(dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool {
		if len(cgroup.Members([]string{dir})) > 0 {
			return false // visible members can be checked, and a group that also has hidden ones cannot be removed
		}
		populated, _ := os.ReadFile(filepath.Join(dir, "cgroup.events")) // of v2
		current, _ := os.ReadFile(filepath.Join(dir, "pids.current"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(current)))
		return n > 0 || strings.Contains(string(populated), "populated 1")
	})
}

// lock locks the directory of a tree. Its error matches unix.EWOULDBLOCK if another process holds the lock, and
// fs.ErrNotExist if the directory does not exist or was removed meanwhile.
func lock(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; err == unix.EINTR; { // the Go runtime sends its threads signals
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	}
	if err == nil {
		var mine, there fs.FileInfo
		if mine, err = f.Stat(); err == nil {
			there, err = os.Lstat(dir)
		}
		if err == nil && !os.SameFile(mine, there) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return f, nil
}

// hold takes the lock that shows that an owner is alive. It is a shared lock; a process that cleans up holds the
// exclusive one only while it checks or removes the directory.
func hold(dir string) (*os.File, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		f, err := lock(dir, unix.LOCK_SH)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return f, err
		}
	}
}
