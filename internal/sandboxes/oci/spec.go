package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/scale/host/proc"
)

// Spec describes a container: its program, and the environment in which the program runs.
type Spec struct {
	Args   []string
	Env    []string
	Root   string   // root file system, which the container cannot write to
	Dirs   []string // directories of this machine that are mounted writable in the container, at the same paths
	Cgroup string   // cgroupsPath: relative to the root of every hierarchy

	// NetNS is the path of the container's network namespace; empty means a new one. If HostNetwork is set, the container
	// uses this machine's network namespace instead.
	NetNS       string
	HostNetwork bool

	Memory      uint64 // limit in bytes, or the memory size of a sandbox with a separate kernel; 0: no limit
	Annotations map[string]string
}

// version is the version of the specification for which bundles are written. All later versions support it.
const version = "1.0.2"

// capabilities are those that Docker gives a container by default (oci/caps/defaults.go of moby).
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// Lacks returns the capabilities that this process lacks and that a runtime needs to create a container with a new
// network namespace: those that the container gets, and those for creating namespaces and interfaces.
func Lacks() (names []string) {
	for _, name := range append([]string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN"}, capabilities...) {
		c, err := cap.FromName(strings.ToLower(name))
		if err == nil && !proc.Capable(uint(c)) {
			names = append(names, name)
		}
	}
	return names
}

// Write creates a directory, the bundle, with the container's config.json. The container has separate namespaces for
// processes, mounts, IPC and its host name, Docker's default capabilities, and no seccomp filter.
func (s Spec) Write(bundle string) error {
	if err := os.MkdirAll(bundle, 0o711); err != nil {
		return fmt.Errorf("making the bundle of a container: %w", err)
	}
	text, err := json.MarshalIndent(s.config(), "", " ")
	if err != nil {
		return fmt.Errorf("encoding the bundle of a container: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600); err != nil {
		return fmt.Errorf("writing the bundle of a container: %w", err)
	}
	return nil
}

func (s Spec) config() *specs.Spec {
	tmpfs := func(at, mode, size string) specs.Mount {
		return specs.Mount{Destination: at, Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "nodev", "mode=" + mode, "size=" + size}}
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		tmpfs("/dev/shm", "1777", "65536k"), tmpfs("/tmp", "1777", "65536k"),
	}
	for _, d := range s.Dirs {
		mounts = append(mounts, specs.Mount{Destination: d, Type: "bind", Source: d, Options: []string{"rbind", "rw"}})
	}
	namespaces := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
	}
	if !s.HostNetwork {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: s.NetNS})
	}
	resources := &specs.LinuxResources{}
	if s.Memory > 0 {
		limit := int64(s.Memory)
		resources.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	return &specs.Spec{
		Version: version,
		Process: &specs.Process{
			Args: s.Args, Env: append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}, s.Env...), Cwd: "/",
			NoNewPrivileges: true,
			Capabilities:    &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Root:        &specs.Root{Path: s.Root, Readonly: true},
		Hostname:    "sandbox",
		Mounts:      mounts,
		Annotations: s.Annotations,
		Linux:       &specs.Linux{CgroupsPath: s.Cgroup, Namespaces: namespaces, Resources: resources},
	}
}
