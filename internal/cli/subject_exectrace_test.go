package cli

import (
	"strings"
	"testing"

	"tare/internal/lib/fault"
)

func TestExectraceFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--ring 1MB": "power of two", "--ring 100000": "power of two", "--output xml": "--output", "--latency 0s1": "--latency", "--latency 1h": "--latency", "--args 100000": "--args", "more": "more",
		"--args -1": "--args", "--latency 0": "--latency", "--args 0 --latency 0s": "--latency", "--ring 0": "power of two", "--for -1s": "--for",
	} {
		c := newRoot()
		c.SetArgs(append([]string{"subject", "exectrace", "--for", "1ms"}, strings.Fields(args)...))
		err := c.ExecuteContext(t.Context())
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
