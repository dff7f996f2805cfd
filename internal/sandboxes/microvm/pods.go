package microvm

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
)

// In a pod, an engine of Kubernetes first creates a container that holds the pod's namespaces and does nothing else
// (the pause container), and then those of the pod. It marks each with one of these annotations
// (github.com/containerd/containerd, internal/cri/annotations; github.com/cri-o/cri-o, pkg/annotations). Kata tells the
// two apart by the same annotations.
var podAnnotations = []string{"io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"}

const (
	podHolder = "sandbox"   // the annotation's value for the container that holds the pod's namespaces
	podMember = "container" // for the others

	podName = "io.kubernetes.cri.sandbox-name" // containerd's annotation with the name of the pod

	runcRoot = ".runc" // runc's root directory, relative to the root of a Runtime
)

// inPod returns what a container is to its pod: podHolder, podMember, or "" if it is in no pod.
func inPod(s *specs.Spec) string {
	return cmp.Or(s.Annotations[podAnnotations[0]], s.Annotations[podAnnotations[1]])
}

// HoldsPod reports whether the container of a bundle only holds the namespaces of a pod. It needs no virtual machine,
// and a virtual machine could not share its namespaces with others, so runc must run it.
func HoldsPod(bundle string) bool {
	s, _, err := readSpec(filepath.Join(bundle, configName))
	return err == nil && inPod(s) == podHolder
}

// ByRunc reports whether runc runs the container, because it holds a pod.
func (r *Runtime) ByRunc(id string) bool {
	if _, err := dirOf(id); err != nil {
		return false
	}
	_, err := os.Lstat(filepath.Join(r.root, runcRoot, id))
	return err == nil
}

// Runc replaces this process by runc with the given arguments. It returns only if that fails.
func (r *Runtime) Runc(args ...string) error {
	runc, err := child.Find("runc")
	if err != nil {
		return fault.Wrap(err, fault.Machine, "runc", "apt-get install runc",
			"the container that holds the namespaces of a pod needs runc")
	}
	argv := append([]string{runc, "--root", filepath.Join(r.root, runcRoot)}, args...)
	return fault.Wrap(unix.Exec(runc, argv, os.Environ()), fault.Machine, runc, "", "cannot execute it")
}

// forPod changes a container's configuration to what a virtual machine can do for a member of a pod. It leaves out what
// protects the host's kernel from the container, as Kata does by default (disable_guest_seccomp in its configuration):
// the container runs on another kernel. The guest's namespaces take the place of those that the pod's containers share,
// which makes no difference as long as the pod has one container.
func forPod(s *specs.Spec) {
	if inPod(s) != podMember {
		return
	}
	l := s.Linux
	l.Seccomp = nil
	for i := range l.Namespaces {
		switch n := &l.Namespaces[i]; n.Type {
		case specs.UTSNamespace:
			n.Path, s.Hostname = "", cmp.Or(s.Hostname, s.Annotations[podName])
		case specs.IPCNamespace:
			n.Path = ""
		}
	}
	if s.Process != nil {
		s.Process.ApparmorProfile = ""
	}
	if r := l.Resources; r != nil {
		// The guest has no huge pages. Kubernetes sets a limit of 0 for each size that the node has.
		r.HugepageLimits = slices.DeleteFunc(r.HugepageLimits, func(p specs.LinuxHugepageLimit) bool { return p.Limit == 0 })
		delete(r.Unified, "memory.oom.group") // the guest's kernel decides whom to kill
	}
}

// errSecond explains that a pod has more than one container.
func errSecond(err error) error {
	return fault.Wrap(err, fault.Usage, "", "give a pod of this RuntimeClass one container", "the pod's network is in use")
}
