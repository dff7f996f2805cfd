package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
)

// Mount is the hint for a machine or container without control groups, and MountV2 for one without the v2 hierarchy.
const (
	Mount   = "mount them: mount -t cgroup2 none /sys/fs/cgroup" + mountInside
	MountV2 = "mount a v2 hierarchy: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified" +
		mountInside

	mountInside = "; in a container, mount the machine's /sys/fs/cgroup there (in Kubernetes a hostPath volume)"
)

// Features returns the probes of what this process can read and create among this machine's control groups.
func Features() []*feature.Probe {
	discover := sync.OnceValues(func() (*Layout, error) { return Discover(Roots{}) })
	probe := func(s feature.Status, f func(*Layout) (string, error)) *feature.Probe {
		return feature.New(s, func() (string, error) {
			l, err := discover()
			if err != nil {
				return "", err
			}
			return f(l)
		})
	}
	return []*feature.Probe{
		probe(feature.Status{
			Name: "cgroups", Required: true,
			Needs: "control groups, v1 or v2, mounted",
			Lost:  "CPU time and memory by control group",
			Hint:  Mount,
		}, probeCPU),
		probe(feature.Status{
			Name:  "cgroup-memory",
			Needs: "the memory controller, on v2 enabled in cgroup.subtree_control of the root",
			Lost:  "memory by control group, and memory limits in experiments",
			Hint: "on v2: echo +memory > cgroup.subtree_control at the root; if the controller is missing, boot without " +
				"cgroup_disable=memory",
		}, func(l *Layout) (string, error) { return probeController(l, "memory") }),
		probe(feature.Status{
			Name:  "cgroup-cpu",
			Needs: "the cpu controller with CONFIG_CFS_BANDWIDTH, on v2 enabled in cgroup.subtree_control of the root",
			Lost:  "throttling by control group, and CPU limits in experiments",
			Hint:  "on v2: echo +cpu > cgroup.subtree_control at the root",
		}, func(l *Layout) (string, error) { return probeController(l, "cpu") }),
		probe(feature.Status{
			Name:  "cgroup-memory-peak",
			Needs: "the memory controller, on v2 Linux 5.19",
			Lost:  "peak memory by control group",
			Hint:  "on v2: boot Linux 5.19 or newer, with the memory controller enabled in cgroup.subtree_control of the root",
		}, probePeak),
		probe(feature.Status{
			Name:  "cgroup-create",
			Needs: "CAP_DAC_OVERRIDE, and control groups mounted for writing",
			Lost:  "experiments: tare run puts each process into a separate group",
			Hint:  "run as root, or with CAP_DAC_OVERRIDE; in a container, mount the control groups for writing",
		}, probeCreate),
	}
}

func probeCPU(l *Layout) (string, error) {
	h, ok := l.CPU()
	if !ok {
		return "", errors.New("no hierarchy of control groups is mounted")
	}
	file := "cpu.stat"
	if !h.V2 {
		file = usageV1
	}
	_, err := os.ReadFile(filepath.Join(h.Mount, file))
	return fmt.Sprintf("%s; CPU time from %s at %s", l.Mode, file, h.Mount), err
}

// probeController checks whether groups below the root can have the controller.
func probeController(l *Layout, name string) (string, error) {
	h, ok := l.Controller(name)
	if !ok {
		return "", fmt.Errorf("no mounted hierarchy has the controller %s", name)
	}
	if !h.V2 {
		return "v1 at " + h.Mount, nil
	}
	b, err := os.ReadFile(filepath.Join(h.Mount, "cgroup.subtree_control"))
	if err != nil {
		return "", err
	}
	if slices.Contains(strings.Fields(string(b)), name) {
		return "v2 at " + h.Mount, nil
	}
	return "", fmt.Errorf("%s is not enabled in cgroup.subtree_control at %s", name, h.Mount)
}

func probePeak(l *Layout) (string, error) {
	h, ok := l.Controller("memory")
	if !ok {
		return "", errors.New("no mounted hierarchy has the controller memory")
	}
	if !h.V2 {
		_, err := os.Stat(filepath.Join(h.Mount, "memory.max_usage_in_bytes"))
		return "memory.max_usage_in_bytes", err
	}
	// The root of v2 has no such file, so a group is created for the probe. If that fails, any existing group will do.
	name, err := probeName("probe-peak")
	if err != nil {
		return "", err
	}
	if dir := filepath.Join(h.Mount, name); os.Mkdir(dir, 0o755) == nil {
		defer os.Remove(dir)
	}
	groups, err := filepath.Glob(filepath.Join(h.Mount, "*", "memory.current"))
	if err == nil && len(groups) == 0 {
		err = errors.New("no group has the memory controller enabled")
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(filepath.Dir(groups[0]), "memory.peak"))
	}
	return "memory.peak", err
}

// probeName returns a group name like those of runs, so that 'tare clean' and later runs remove the group if this
// process is killed.
func probeName(id string) (string, error) {
	self, err := proc.FS{}.Identify()
	if err != nil {
		return "", err
	}
	return "tare-" + id + "-" + self.String(), nil
}

// probeCreate creates a group in each hierarchy that experiments use, and removes it.
func probeCreate(l *Layout) (string, error) {
	name, err := probeName("probe")
	if err != nil {
		return "", err
	}
	var in []string
	for i := range l.Hierarchies {
		h := &l.Hierarchies[i]
		if !h.V2 && !h.Has("cpu") && !h.Has("cpuacct") && !h.Has("memory") && !h.Has("pids") {
			continue
		}
		dir := filepath.Join(h.Mount, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		if err := os.Remove(dir); err != nil {
			return "", err
		}
		in = append(in, h.Mount)
	}
	if len(in) == 0 {
		return "", errors.New("no hierarchy of control groups is mounted")
	}
	return "in " + strings.Join(in, ", "), nil
}
