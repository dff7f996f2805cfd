package microvm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// member is what containerd asks of a runtime for a container in a pod, as far as a virtual machine cannot do it.
const member = `{
	"ociVersion": "1.2.0",
	"annotations": {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-name": "web-0"},
	"process": {"args": ["/bin/true"], "cwd": "/", "apparmorProfile": "cri-containerd.apparmor.d"},
	"root": {"path": "rootfs"},
	"linux": {
		"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"},
		"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc", "path": "/proc/7/ns/ipc"},
			{"type": "uts", "path": "/proc/7/ns/uts"}, {"type": "network", "path": "/run/netns/cni-1"}],
		"resources": {"hugepageLimits": [{"pageSize": "2MB", "limit": 0}], "unified": {"memory.oom.group": "1"}}
	}
}`

func bundleOf(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, configName), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// with returns the configuration of a member of a pod after a change.
func with(t *testing.T, change func(*specs.Spec)) string {
	t.Helper()
	s := &specs.Spec{}
	if err := json.Unmarshal([]byte(member), s); err != nil {
		t.Fatal(err)
	}
	change(s)
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestPodMember: what containerd asks for every container in a pod is no reason to refuse one. Elsewhere it is, and so
// is what a virtual machine cannot replace.
func TestPodMember(t *testing.T) {
	s, _, err := loadSpec(bundleOf(t, member))
	if err != nil {
		t.Fatal(err)
	}
	if s.Hostname != "web-0" || networkPath(s) != "/run/netns/cni-1" {
		t.Errorf("the host name is %q, the network %q", s.Hostname, networkPath(s))
	}
	for name, change := range map[string]func(*specs.Spec){
		"no pod":                  func(s *specs.Spec) { s.Annotations = nil },
		"another pod's processes": func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/7/ns/pid" },
		"huge pages":              func(s *specs.Spec) { s.Linux.Resources.HugepageLimits[0].Limit = 1 << 21 },
		"another limit":           func(s *specs.Spec) { s.Linux.Resources.Unified["memory.high"] = "1" },
		"a label for the machine": func(s *specs.Spec) { s.Process.SelinuxLabel = "x" },
		"the network of the host": func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:4] },
		"a terminal":              func(s *specs.Spec) { s.Process.Terminal = true },
		"a user namespace": func(s *specs.Spec) {
			s.Linux.Namespaces[3] = specs.LinuxNamespace{Type: specs.UserNamespace}
		},
		"a time of boot": func(s *specs.Spec) {
			s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {}}
		},
	} {
		if _, _, err := loadSpec(bundleOf(t, with(t, change))); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestPodHolder: runc runs the container that holds a pod, and none of another id.
func TestPodHolder(t *testing.T) {
	for kind, want := range map[string]bool{podHolder: true, podMember: false, "": false} {
		for _, key := range podAnnotations {
			dir := bundleOf(t, with(t, func(s *specs.Spec) { s.Annotations = map[string]string{key: kind} }))
			if got := HoldsPod(dir); got != want {
				t.Errorf("%s=%s: %v", key, kind, got)
			}
		}
	}
	r, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(r.root, runcRoot, "holder"), 0o700); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{
		"holder": true, "other": false, "../" + runcRoot + "/holder": false, "": false, ".": false, "..": false,
	} {
		if got := r.ByRunc(id); got != want {
			t.Errorf("%q: %v", id, got)
		}
	}
}
