package sandbox

import (
	"strings"
	"testing"
)

// TestComponentOf: processes of all runtimes, by their command lines.
func TestComponentOf(t *testing.T) {
	for line, want := range map[string]string{
		"/usr/bin/tare _shim /run/tare/tree/server/job.json": Shim,
		"/usr/bin/tare microvm _shim -id a":                  Shim,
		"containerd-shim-runc-v2 -namespace k8s.io -id a":    Shim,
		"runsc-sandbox --root=/r boot a":                     Sentry,
		"runsc-gofer --root=/r gofer":                        Gofer,
		"/usr/bin/qemu-system-x86_64 -name sandbox-a":        VMM,
		"/usr/lib/qemu/virtiofsd --fd=3":                     Virtiofsd,
		"/tare _play app http {}":                            Workload,
		"":                                                   Workload,
	} {
		if got := componentOf(strings.Fields(line), true); got != want {
			t.Errorf("%q is %s, want %s", line, got, want)
		}
	}
	if got := componentOf([]string{"conmon"}, false); got != Monitor {
		t.Errorf("what else runs beside the pod is %s", got)
	}
}
