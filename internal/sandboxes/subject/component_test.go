package subject

import (
	"strings"
	"testing"
)

// TestComponentOf: processes of all runtimes, by their command lines.
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
		if got, err := componentOf("exe", strings.Fields(line), true); got != want || err != nil {
			t.Errorf("%q is %s, want %s; %v", line, got, want, err)
		}
	}
	for _, line := range []string{"conmon -c a", "containerd", "runc create a", ""} {
		if got, err := componentOf("exe", strings.Fields(line), false); got != Monitor || err != nil {
			t.Errorf("%q beside the pod is %s, %v", line, got, err)
		}
	}
}
