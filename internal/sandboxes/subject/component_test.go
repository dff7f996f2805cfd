package subject

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/param"
	"tare/internal/sandboxes/microvm"
	"tare/internal/scale/host/sandbox"
)

// TestRuntimes: the known runtimes, and the peculiarities of two of them.
func TestRuntimes(t *testing.T) {
	for _, name := range []string{none, "crun", "microvm", "runc", "runsc", "youki"} {
		if r := settings[0]; r.Reaches(name) != param.ReachNothing || !strings.Contains(r.Doc, "`"+name+"`") {
			t.Errorf("%s is not known: %v, %s", name, r.Known, r.Doc)
		}
	}
	v := param.Values{settingRuntime: "/opt/runsc", "platform": "kvm", settingNetwork: hostNetwork}
	gvisor := sandbox.LaunchOf(v[settingRuntime])
	if got := gvisor.Config(v, "").Args; string(gvisor.Main) != Sentry ||
		(guest{}).About().Trait(v) != "gVisor, platform kvm" ||
		!slices.Equal(got, []string{"--platform=kvm", "--overlay2=none", "--network=host"}) {
		t.Errorf("of runsc: %+v, %q", gvisor, got)
	}
	// The names of annotations, and the default boot timeout, of Tare's own runtime are defined in another package, and
	// must agree.
	given := func(within time.Duration) map[string]string {
		return sandbox.LaunchOf("microvm").Config(param.Values{settingReady: within.String()}, "/pod/beside").Annotations
	}
	for key, value := range given(2 * microvm.BootTimeout) {
		name, ours := strings.CutPrefix(key, microvm.Annotation)
		if value == "" || !ours || !slices.ContainsFunc(microvm.OptionList(),
			func(o microvm.Option) bool { return o.Name == name }) {
			t.Errorf("the annotation %s: %q", key, value)
		}
	}
	if a, b := len(given(2*microvm.BootTimeout)), len(given(microvm.BootTimeout)); a != 3 || b != 2 {
		t.Errorf("%d annotations with a time to boot, %d without", a, b)
	}
}

// TestComponentOf: the processes of all runtimes are recognized by their command lines.
func TestComponentOf(t *testing.T) {
	for line, want := range map[string]string{
		"/usr/bin/tare _shim -id a /run/tare/t/a/job.json": Shim,
		"/usr/bin/tare microvm _shim -id a":                Shim,
		"containerd-shim-runc-v2 -namespace k8s.io -id a":  Shim,
		"runsc-sandbox --root=/r boot a":                   Sentry,
		"runsc-gofer --root=/r gofer":                      Gofer,
		"/usr/bin/qemu-system-x86_64 -name sandbox-a":      VMM,
		"/usr/lib/qemu/virtiofsd --fd=3":                   Virtiofsd,
		"/tare _play app http {}":                          Workload,
		"runc init":                                        Workload,
		"/tini -- /app":                                    Workload,
		"":                                                 Workload,
	} {
		if got := componentOf("exe", strings.Fields(line), true); got != want {
			t.Errorf("%q is %s, want %s", line, got, want)
		}
	}
	for _, line := range []string{"conmon -c a", "containerd", "runc create a", ""} {
		if got := componentOf("exe", strings.Fields(line), false); got != Monitor {
			t.Errorf("%q beside the pod is %s", line, got)
		}
	}
}
