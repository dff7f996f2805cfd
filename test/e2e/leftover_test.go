package e2e

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
	"testing"
	"time"
)

// footprint is what tare could leave behind on a machine, each thing under a name that says what it is.
type footprint map[string]bool

// leavesNothing fails the test if, at its end, there is something of tare's on the machine that was not there before.
func leavesNothing(t *testing.T) {
	t.Helper()
	before := look(t)
	t.Cleanup(func() {
		for _, what := range before.left(t) {
			t.Errorf("left behind: %s", what)
		}
	})
}

// left is what has been left behind since. The kernel frees programs a while after their last holder has gone, so it
// looks again for some seconds while there is something.
func (before footprint) left(t *testing.T) []string {
	t.Helper()
	var left []string
	for range 50 {
		left = left[:0]
		for what := range maps.Keys(look(t)) {
			if !before[what] {
				left = append(left, what)
			}
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	slices.Sort(left)
	return left
}

// look finds everything that has lost its owner: control groups of runs, processes of runs, programs that no process
// holds. What a living tare has on the machine is its own affair.
func look(t *testing.T) footprint {
	t.Helper()
	f := footprint{}
	for _, find := range []func(footprint) error{findCgroups, findProcesses, findPrograms} {
		if err := find(f); errors.Is(err, exec.ErrNotFound) {
			t.Skipf("needs bpftool, to look for what is left behind: %v", err)
		} else if err != nil {
			t.Fatalf("looking for what tare left behind: %v", err)
		}
	}
	return f
}

// findCgroups finds the trees of runs whose owner is dead, in every hierarchy.
func findCgroups(f footprint) error {
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
			if err != nil || !d.IsDir() { // groups come and go
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

// findProcesses finds processes of runs whose owner is dead: each carries the name of its run in TARE_RUN, or as that
// of an open file in memory.
func findProcesses(f footprint) error {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, process := range processes {
		var names []string
		env, _ := os.ReadFile(filepath.Join(process, "environ")) // it may have gone
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

// ownerDead reads the name of a run, tare-<id>-p<pid>-t<start time> of its owner, and says whether that process has
// gone.
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
	// The start time is field 22; field 2, the name in parentheses, may hold anything, so count from behind it.
	field := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(field) < 20 || field[19] != start || field[0] == "Z", true
}

// findPrograms finds eBPF programs that no process holds by itself or by a link: pinned, or attached for ever.
func findPrograms(f footprint) error {
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
		if !held[fmt.Sprint(p.ID)] {
			f[fmt.Sprintf("eBPF program %d, %s %s", p.ID, p.Type, p.Name)] = true
		}
	}
	return nil
}

// heldPrograms are the ids of the programs to which a process has a descriptor, of the program or of a link. (bpftool
// would tell this too, but Debian's is built without.)
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
