// Package footprint looks for what tare could leave behind on a machine: control groups, processes, eBPF programs,
// network interfaces, mounts, directories. It looks from the outside, by what the kernel shows, and shares no code
// with tare.
package footprint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Footprint is a set of things that have lost their owner. The keys describe them.
type Footprint map[string]bool

// Look finds everything that has lost its owner. It leaves out what belongs to a running tare. It needs bpftool: an
// error that wraps exec.ErrNotFound says that bpftool is missing.
func Look() (Footprint, error) {
	f := Footprint{}
	for _, find := range []func(Footprint) error{
		findCgroups, findProcesses, findPrograms, findInterfaces, findMounts, findDirectories,
	} {
		if err := find(f); err != nil {
			return nil, fmt.Errorf("looking for what tare left behind: %w", err)
		}
	}
	return f, nil
}

// Left returns, in order, what has lost its owner since the Look that returned before. The kernel frees programs a
// while after their last holder has gone, so as long as Left finds something, it looks again, for some seconds.
func (before Footprint) Left() ([]string, error) {
	var left []string
	for range 50 {
		now, err := Look()
		if err != nil {
			return nil, err
		}
		left = left[:0]
		for what := range maps.Keys(now) {
			if !before[what] {
				left = append(left, what)
			}
		}
		if len(left) == 0 {
			return nil, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	slices.Sort(left)
	return left, nil
}

// findCgroups finds the control groups of runs whose owner is dead, in every hierarchy.
func findCgroups(f Footprint) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		field := strings.Fields(line)
		if len(field) < 3 || field[2] != "cgroup" && field[2] != "cgroup2" {
			continue
		}
		err := filepath.WalkDir(field[1], func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() { // groups come and go during the walk
				return nil
			}
			if dead, isRun := ownerDead(d.Name()); isRun {
				if dead {
					f["cgroup "+path] = true
				}
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// findProcesses finds processes of runs whose owner is dead: each carries the name of its run in TARE_RUN, or as the
// name of an open file in memory (memfd).
func findProcesses(f Footprint) error {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, process := range processes {
		var names []string
		env, _ := os.ReadFile(filepath.Join(process, "environ")) // the process may have ended
		for v := range strings.SplitSeq(string(env), "\x00") {
			if name, ok := strings.CutPrefix(v, "TARE_RUN="); ok {
				names = append(names, name)
			}
		}
		files, _ := filepath.Glob(filepath.Join(process, "fd/*"))
		for _, file := range files {
			to, _ := os.Readlink(file)
			if name, ok := strings.CutPrefix(to, "/memfd:tare-"); ok {
				names = append(names, "tare-"+strings.TrimSuffix(name, " (deleted)"))
			}
		}
		for _, name := range names {
			if dead, isRun := ownerDead(name); isRun && dead {
				cmdline, _ := os.ReadFile(filepath.Join(process, "cmdline"))
				f[fmt.Sprintf("process %s of %s: %s", filepath.Base(process), name,
					bytes.ReplaceAll(cmdline, []byte{0}, []byte(" ")))] = true
			}
		}
	}
	return nil
}

var runName = regexp.MustCompile(`^tare-.+-p([0-9]+)-t([0-9]+)$`)

// ownerDead reads the name of a run, tare-<id>-p<pid>-t<start time>, which identifies the process that owns the run,
// and reports whether that process has ended.
func ownerDead(name string) (dead, isRun bool) {
	part := runName.FindStringSubmatch(name)
	if part == nil {
		return false, false
	}
	pid, start := part[1], part[2]
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", pid))
	if err != nil {
		return true, true
	}
	// The start time is field 22. Field 2, the name in parentheses, may contain anything, so count from its end.
	field := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(field) < 20 || field[19] != start || field[0] == "Z", true
}

// findPrograms finds eBPF programs that no process holds by a descriptor of the program or of a link: they are pinned,
// or attached for ever.
func findPrograms(f Footprint) error {
	out, err := exec.Command("bpftool", "-j", "prog", "show").Output()
	if err != nil {
		return fmt.Errorf("bpftool prog show: %w", err)
	}
	var programs []struct {
		ID   uint32 `json:"id"`
		Type string `json:"type"`
		Name string `json:"name"`
	}
	if err := json.Unmarshal(out, &programs); err != nil {
		return fmt.Errorf("reading what bpftool printed: %w", err)
	}
	if len(programs) == 0 {
		return nil
	}
	held, err := heldPrograms()
	if err != nil {
		return err
	}
	for _, p := range programs {
		// runc attaches a program of this type to the control group of each container; Tare has none of this type.
		if !held[fmt.Sprint(p.ID)] && p.Type != "cgroup_device" {
			f[fmt.Sprintf("eBPF program %d, %s %s", p.ID, p.Type, p.Name)] = true
		}
	}
	return nil
}

// heldPrograms returns the IDs of the programs that any process holds by a descriptor of the program or of a link.
// (bpftool could list the processes, but Debian's is built without that feature.)
func heldPrograms() (map[string]bool, error) {
	infos, err := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, path := range infos {
		info, err := os.ReadFile(path)
		if err != nil {
			continue // it has been closed
		}
		for line := range strings.Lines(string(info)) {
			if id, ok := strings.CutPrefix(line, "prog_id:"); ok {
				held[strings.TrimSpace(id)] = true
			}
		}
	}
	return held, nil
}

// findInterfaces finds network interfaces whose alias names a run with a dead owner.
func findInterfaces(f Footprint) error {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("listing network interfaces: %w", err)
	}
	for _, l := range links {
		if dead, isRun := ownerDead(l.Attrs().Alias); isRun && dead {
			f["interface "+l.Attrs().Name+" of "+l.Attrs().Alias] = true
		}
	}
	return nil
}

// microvmOfATest matches the state of a microVM that a test has started without a run. That test itself looks for what
// the microVM leaves behind.
var microvmOfATest = regexp.MustCompile(`/tare-microvm/(,new-[^/]*-)?tare-test-`)

// findMounts finds mounts that have lost their owner: below a directory named after a run, a scratch directory, or the
// state of a microVM. Other mounts with a name like tare's may belong to a test beside this one, such as a Kubernetes
// cluster.
func findMounts(f Footprint) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		field := strings.Fields(line)
		if len(field) < 2 {
			continue
		}
		above := ""
		for name := range strings.SplitSeq(strings.TrimPrefix(field[1], "/"), "/") {
			above += "/" + name
			dead, _ := ownerDead(name)
			if dead || strings.HasPrefix(name, "tare-scratch-") && !locked(above) ||
				name == "tare-microvm" && !microvmOfATest.MatchString(field[1]) {
				f["mount "+field[1]] = true
			}
		}
	}
	return nil
}

// findDirectories finds scratch directories that nobody has locked, and the state of sandboxes in /run/tare, unless it
// is named after a run whose owner is alive.
func findDirectories(f Footprint) error {
	for _, parent := range []string{os.TempDir(), "/var/tmp"} {
		found, err := filepath.Glob(filepath.Join(parent, "tare-scratch-*"))
		if err != nil {
			return err
		}
		for _, path := range found {
			if !locked(path) {
				f["directory "+path] = true
			}
		}
	}
	states, err := filepath.Glob("/run/tare/*")
	for _, path := range states {
		if dead, isRun := ownerDead(filepath.Base(path)); dead || !isRun {
			f["directory "+path] = true
		}
	}
	return err
}

// locked reports whether anybody holds a lock on a directory.
func locked(path string) bool {
	d, err := os.Open(path)
	if err != nil {
		return false // the directory has been removed
	}
	defer d.Close()
	return unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}
