package microvm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/scale/host/cgroup"
)

// Kata's Go runtime, without systemd, places processes in control groups as follows
// (src/runtime/pkg/resourcecontrol/cgroups.go and virtcontainers/sandbox.go). This package does the same.
//
//   - The sandbox's group is <parent>/kata_<name> if the bundle's cgroupsPath is <parent>/<name>.
//   - With sandbox_cgroup_only, the shim enters the sandbox's group before it starts anything, so everything is in it.
//   - Otherwise the shim enters /kata_overhead/<id> before it starts anything. When the machine has booted, each of
//     its virtual CPUs is added to the sandbox's group. On v1 that moves one thread, and memory stays charged to the
//     group of the thread group's leader. On v2 the id of a thread is written to cgroup.procs, which moves its whole
//     process; the pages that it touched before stay charged to the old group.

// groupControllers are the v1 controllers in whose hierarchies a sandbox has groups.
var groupControllers = []string{"cpu", "cpuacct", "memory", "pids", "blkio"}

// groupHierarchies returns the hierarchies in which a sandbox has groups: v1 hierarchies if the memory controller is in
// v1, as on a hybrid machine, and otherwise v2.
func groupHierarchies(l *cgroup.Layout) []*cgroup.Hierarchy {
	var hs []*cgroup.Hierarchy
	memory, _ := l.Controller("memory")
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		if memory != nil && memory.V2 == h.V2 && (h.V2 || slices.ContainsFunc(groupControllers, h.Has)) {
			hs = append(hs, h)
		}
	}
	return hs
}

// sandboxGroup returns the path of a sandbox's group below the mounts of the hierarchies.
func sandboxGroup(o Options, cgroupsPath, id string) string {
	p := path.Join(o.CgroupRoot, "/", cmp.Or(cgroupsPath, "/vc/"+id)) // Kata's default is /vc/<id>
	return path.Join(path.Dir(p), "kata_"+path.Base(p))
}

func overheadGroup(o Options, id string) string {
	if o.SandboxCgroupOnly {
		return ""
	}
	return path.Join(o.CgroupRoot, o.OverheadParent, id)
}

// planGroups determines which directories to make for the sandbox, parents first. It returns an error if the sandbox's
// own groups already exist. Parents that another sandbox has made belong to both sandboxes, and are removed with
// whichever of the two is removed last.
func (s *sandbox) planGroups(l *cgroup.Layout, others []*sandbox) error {
	hs := groupHierarchies(l)
	made := func(dir string) bool {
		return slices.ContainsFunc(others, func(o *sandbox) bool { return slices.Contains(o.Groups, dir) })
	}
	if len(hs) == 0 {
		return fault.New(fault.Machine, "", cgroup.Mount,
			"no control groups are mounted on this machine")
	}
	for _, h := range hs {
		for _, group := range []string{s.SandboxGroup, s.OverheadGroup} {
			if group == "" {
				continue
			}
			if _, err := os.Lstat(filepath.Join(h.Mount, group)); err == nil {
				return fault.New(fault.Usage, filepath.Join(h.Mount, group),
					"delete the container to which it belongs, or use another id",
					"the control group exists already")
			}
			var missing []string
			for p := group; p != "/"; p = path.Dir(p) {
				dir := filepath.Join(h.Mount, p)
				if _, err := os.Lstat(dir); err == nil && !made(dir) {
					break
				}
				missing = append(missing, dir)
			}
			slices.Reverse(missing)
			s.Groups = lists.Include(s.Groups, missing...)
		}
	}
	return nil
}

// makeGroups makes the directories. Parents that Tare makes delegate all of their v2 controllers. Groups that others
// have made are not changed.
func (s *sandbox) makeGroups() error {
	for _, dir := range s.Groups {
		above := filepath.Dir(dir)
		if slices.Contains(s.Groups, above) {
			if err := delegate(above); err != nil {
				return err
			}
		}
		// Another sandbox may just have made a parent group, or may have removed it with its own group.
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fault.Wrap(err, fault.Machine, dir, rootHint, "cannot make a control group")
		}
	}
	return nil
}

func delegate(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil // v1
	}
	for c := range strings.FieldsSeq(string(b)) {
		if err := cgroup.Write(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
			return fmt.Errorf("enabling the controller %s in %s: %w", c, dir, err)
		}
	}
	return nil
}

// enter moves this process into a group.
func enter(l *cgroup.Layout, group string) error {
	for _, h := range groupHierarchies(l) {
		file := filepath.Join(h.Mount, group, "cgroup.procs")
		if err := cgroup.Write(file, strconv.Itoa(os.Getpid())); err != nil {
			return fault.Wrap(err, fault.Machine, file, "see 'tare doctor'", "entering the control group")
		}
	}
	return nil
}

// addThreads adds the threads of virtual CPUs to a group, as Kata does.
func addThreads(hs []*cgroup.Hierarchy, group string, tids []int) error {
	for _, h := range hs {
		name := "tasks"
		if h.V2 {
			name = "cgroup.procs"
		}
		for _, tid := range tids {
			file := filepath.Join(h.Mount, group, name)
			if err := cgroup.Write(file, strconv.Itoa(tid)); err != nil {
				return fault.Wrap(err, fault.Machine, file, "", "adding the virtual CPU %d", tid)
			}
		}
	}
	return nil
}

// limitGroup sets the container's CPU limits on the sandbox's group. The memory limit is not set there: it determines
// the size of the virtual machine.
func (s *sandbox) limitGroup(l *cgroup.Layout, r *specs.LinuxResources) error {
	if r == nil || r.CPU == nil {
		return nil
	}
	h, ok := l.Controller("cpu")
	if !ok {
		return fault.New(fault.Machine, "linux.resources.cpu", "", "no hierarchy has the controller cpu")
	}
	dir := filepath.Join(h.Mount, s.SandboxGroup)
	period := uint64(100_000)
	if r.CPU.Period != nil && *r.CPU.Period > 0 {
		period = *r.CPU.Period
	}
	set := func(file, value string) error {
		return fault.Wrap(cgroup.Write(filepath.Join(dir, file), value), fault.Machine, dir, "", "writing %s to %s",
			value, file)
	}
	if h.V2 {
		if q := r.CPU.Quota; q != nil && *q > 0 {
			if err := set("cpu.max", fmt.Sprintf("%d %d", *q, period)); err != nil {
				return err
			}
		}
		if shares := r.CPU.Shares; shares != nil && *shares > 0 {
			// The conversion of runc and the kubelet maps 2..262144 to 1..10000.
			return set("cpu.weight", strconv.FormatUint(1+(max(*shares, 2)-2)*9999/262142, 10))
		}
		return nil
	}
	if q := r.CPU.Quota; q != nil && *q > 0 {
		if err := errors.Join(set("cpu.cfs_period_us", strconv.FormatUint(period, 10)),
			set("cpu.cfs_quota_us", strconv.FormatInt(*q, 10))); err != nil {
			return err
		}
	}
	if shares := r.CPU.Shares; shares != nil && *shares > 0 {
		return set("cpu.shares", strconv.FormatUint(*shares, 10))
	}
	return nil
}

// removeGroups removes the sandbox's groups, and the parents that Tare made for them if these are empty. A group may be
// busy for a moment after its last process has ended.
func (s *sandbox) removeGroups() error {
	var errs []error
	deadline := time.Now().Add(patience)
	for _, dir := range slices.Backward(s.Groups) {
		own := strings.HasSuffix(dir, s.SandboxGroup) || s.OverheadGroup != "" && strings.HasSuffix(dir, s.OverheadGroup)
		err := os.Remove(dir)
		for own && errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
			time.Sleep(2 * time.Millisecond)
			err = os.Remove(dir)
		}
		if err != nil && own && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fault.Wrap(err, fault.Machine, dir, "run 'tare clean' later", "cannot remove the control group"))
		}
	}
	return errors.Join(errs...)
}
