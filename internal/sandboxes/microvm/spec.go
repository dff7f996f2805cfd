package microvm

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/internal/lib/fault"
)

const (
	configName = "config.json"
	configMax  = 4 << 20 // bytes of a bundle's configuration
	bindsMax   = 40      // bind mounts of a bundle; each needs one of a plan's 64 registers (c/init.c)
)

// loadSpec reads the configuration of a bundle and refuses unsupported settings. The error has the code fault.Usage.
func loadSpec(bundle string) (*specs.Spec, []byte, error) {
	file := filepath.Join(bundle, configName)
	spec, b, err := readSpec(file)
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Usage, bundle,
			"give the directory that contains config.json with --bundle", "cannot read the bundle")
	}
	forPod(spec)
	err = check(spec, bundle)
	return spec, b, fault.Wrap(err, fault.Usage, file, "docs/microvm.md lists what a microvm does not do",
		"cannot run this container")
}

// readSpec reads a configuration without checking it. It also returns the file's content.
func readSpec(file string) (*specs.Spec, []byte, error) {
	b, err := readBounded(file, configMax)
	if err != nil {
		return nil, nil, err
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(b, spec); err != nil {
		return nil, nil, fmt.Errorf("not a configuration of the OCI runtime specification: %w", err)
	}
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	return spec, b, nil
}

// check refuses invalid and unsupported settings. All settings that it accepts are implemented, or listed in
// docs/microvm.md.
func check(s *specs.Spec, bundle string) error {
	if !strings.HasPrefix(s.Version, "1.") {
		return fmt.Errorf("ociVersion %q is not supported: 1.x is", s.Version)
	}
	if s.Process == nil || len(s.Process.Args) == 0 {
		return fmt.Errorf("process.args must name a program")
	}
	if !path.IsAbs(s.Process.Cwd) {
		return fmt.Errorf("process.cwd %q must be an absolute path", s.Process.Cwd)
	}
	if s.Root == nil || s.Root.Path == "" {
		return fmt.Errorf("root.path is required")
	}
	root := rootOf(s, bundle)
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		return fmt.Errorf("root.path %s is not a directory", root)
	}
	p, l := s.Process, s.Linux
	for _, refused := range []struct {
		what  string
		asked bool
	}{
		{"process.terminal", p.Terminal},
		{"process.selinuxLabel", p.SelinuxLabel != ""},
		{"process.apparmorProfile", p.ApparmorProfile != ""},
		{"process.scheduler", p.Scheduler != nil},
		{"process.ioPriority", p.IOPriority != nil},
		{"process.execCPUAffinity", p.ExecCPUAffinity != nil},
		{"linux.seccomp", l.Seccomp != nil},
		{"linux.mountLabel", l.MountLabel != ""},
		{"linux.intelRdt", l.IntelRdt != nil},
		{"linux.personality", l.Personality != nil},
		{"linux.uidMappings", len(l.UIDMappings)+len(l.GIDMappings) > 0},
		{"linux.timeOffsets", len(l.TimeOffsets) > 0},
		{"linux.rootfsPropagation " + l.RootfsPropagation,
			slices.Contains([]string{"shared", "rshared", "unbindable"}, l.RootfsPropagation)},
		{"hooks.createContainer", s.Hooks != nil && len(s.Hooks.CreateContainer) > 0},
		{"hooks.startContainer", s.Hooks != nil && len(s.Hooks.StartContainer) > 0},
		{"a platform other than linux", s.Windows != nil || s.Solaris != nil || s.VM != nil || s.ZOS != nil ||
			s.FreeBSD != nil},
	} {
		if refused.asked {
			return fmt.Errorf("%s is not supported", refused.what)
		}
	}
	if err := checkResources(l.Resources); err != nil {
		return err
	}
	if err := checkMounts(s.Mounts); err != nil {
		return err
	}
	if err := checkNamespaces(l.Namespaces); err != nil {
		return err
	}
	if strings.Contains(l.CgroupsPath, ":") {
		return fmt.Errorf("linux.cgroupsPath %q has the form for systemd's cgroup driver, which is not supported",
			l.CgroupsPath)
	}
	if l.CgroupsPath != "" {
		if err := groupPath(path.Join("/", l.CgroupsPath)); err != nil ||
			slices.Contains(strings.Split(l.CgroupsPath, "/"), "..") {
			return fmt.Errorf("linux.cgroupsPath %q is not a path of a control group", l.CgroupsPath)
		}
	}
	for _, list := range [][]string{p.Args, p.Env, l.MaskedPaths, l.ReadonlyPaths, {p.Cwd, s.Hostname, s.Domainname}} {
		for _, v := range list {
			if strings.Contains(v, "\x00") {
				return fmt.Errorf("%q has a zero byte in it", v)
			}
		}
	}
	for _, r := range p.Rlimits {
		if _, ok := rlimits[r.Type]; !ok {
			return fmt.Errorf("process.rlimits: unknown limit %q", r.Type)
		}
	}
	for _, d := range l.Devices {
		if _, ok := deviceTypes[d.Type]; !ok || !path.IsAbs(d.Path) {
			return fmt.Errorf("linux.devices: %q of type %q is invalid: the path must be absolute, and the type "+
				"c, u, b or p", d.Path, d.Type)
		}
	}
	_, err := capabilitySets(p.Capabilities)
	return err
}

// checkNamespaces refuses to join namespaces of the host, which a virtual machine cannot share, except for a network
// namespace. It also refuses kinds of namespaces that are unsupported or listed twice. A network namespace must be
// listed.
func checkNamespaces(list []specs.LinuxNamespace) error {
	network := false
	seen := map[specs.LinuxNamespaceType]bool{}
	for _, n := range list {
		if seen[n.Type] {
			return fmt.Errorf("linux.namespaces: %s is listed twice", n.Type)
		}
		seen[n.Type] = true
		switch n.Type {
		case specs.NetworkNamespace:
			network = true
		case specs.UserNamespace, specs.TimeNamespace:
			return fmt.Errorf("linux.namespaces: a %s namespace is not supported", n.Type)
		case specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace:
			if n.Path != "" {
				return fmt.Errorf("linux.namespaces: a sandbox cannot join the %s namespace %s of the host", n.Type, n.Path)
			}
		default:
			return fmt.Errorf("linux.namespaces: unknown namespace %q", n.Type)
		}
	}
	if !network {
		return fmt.Errorf("linux.namespaces: a network namespace is missing, and a sandbox cannot have the host's network")
	}
	return nil
}

// checkResources refuses limits that are not enforced. Limits of memory, CPU time and the number of processes are
// enforced.
func checkResources(r *specs.LinuxResources) error {
	if r == nil {
		return nil
	}
	for _, refused := range []struct {
		what  string
		asked bool
	}{
		{"blockIO", r.BlockIO != nil}, {"hugepageLimits", len(r.HugepageLimits) > 0}, {"network", r.Network != nil},
		{"rdma", len(r.Rdma) > 0}, {"unified", len(r.Unified) > 0},
	} {
		if refused.asked {
			return fmt.Errorf("linux.resources.%s is not supported", refused.what)
		}
	}
	if m := r.Memory; m != nil && (m.KernelTCP != nil || m.Swappiness != nil ||
		m.DisableOOMKiller != nil && *m.DisableOOMKiller) {
		return fmt.Errorf("linux.resources.memory: only limit, reservation and swap are supported")
	}
	if c := r.CPU; c != nil && (c.Cpus != "" || c.Mems != "" || c.RealtimePeriod != nil || c.RealtimeRuntime != nil ||
		c.Idle != nil) {
		return fmt.Errorf("linux.resources.cpu: only shares, quota, burst and period are supported")
	}
	return nil
}

func checkMounts(mounts []specs.Mount) error {
	binds := 0
	for _, m := range mounts {
		if !path.IsAbs(m.Destination) {
			return fmt.Errorf("mounts: the destination %q must be an absolute path", m.Destination)
		}
		if len(m.UIDMappings)+len(m.GIDMappings) > 0 {
			return fmt.Errorf("mounts: %s: uidMappings are not supported", m.Destination)
		}
		o, err := mountOptions(m.Options)
		if err != nil {
			return fmt.Errorf("mounts: %s: %w", m.Destination, err)
		}
		switch {
		case isBind(m, o):
			binds++
			if !path.IsAbs(m.Source) {
				return fmt.Errorf("mounts: %s: the source %q of a bind mount must be an absolute path", m.Destination,
					m.Source)
			}
			if _, err := os.Stat(m.Source); err != nil {
				return fmt.Errorf("mounts: %s: %w", m.Destination, err)
			}
		case !slices.Contains([]string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"}, m.Type):
			return fmt.Errorf("mounts: %s: type %q is not supported", m.Destination, m.Type)
		}
	}
	if binds > bindsMax {
		return fmt.Errorf("mounts: %d bind mounts, and at most %d are supported", binds, bindsMax)
	}
	return nil
}

// rootOf returns the directory on the host that contains the container's root.
func rootOf(s *specs.Spec, bundle string) string {
	if filepath.IsAbs(s.Root.Path) {
		return filepath.Clean(s.Root.Path)
	}
	return filepath.Join(bundle, s.Root.Path)
}

// networkPath returns the path of the network namespace that the sandbox joins. It returns "" if the bundle asks for a
// new namespace, which has no network.
func networkPath(s *specs.Spec) string {
	for _, n := range s.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			return n.Path
		}
	}
	return ""
}
