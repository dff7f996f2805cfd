package cli

import (
	"strings"
	"testing"

	"tare/internal/fault"
	"tare/internal/subject/exectrace"
)

func TestSizeFlag(t *testing.T) {
	for text, want := range map[string]struct {
		bytes int // negative: refused
		shown string
	}{
		"65536": {65536, "64KiB"}, "64KiB": {65536, "64KiB"}, "1MiB": {1 << 20, "1MiB"}, "1 GiB": {1 << 30, "1024MiB"}, "1000": {1000, "1000"}, "1500KiB": {1500 << 10, "1500KiB"},
		"": {-1, ""}, "KiB": {-1, ""}, "-1": {-1, ""}, "1.5MiB": {-1, ""}, "1MB": {-1, ""}, "9999999999": {-1, ""}, "2147483647GiB": {-1, ""},
	} {
		var s sizeFlag
		err := s.Set(text)
		switch {
		case want.bytes < 0:
			if err == nil {
				t.Errorf("%q is taken for %d bytes", text, s)
			}
		case err != nil || int(s) != want.bytes || s.String() != want.shown:
			t.Errorf("%q: got %d bytes, shown as %s; %v", text, s, s.String(), err)
		}
	}
}

func TestExectraceFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--ring 1MB": "--ring", "--ring 100000": "--ring", "--output xml": "--output", "--latency 0s1": "--latency", "--latency 1h": "--latency", "--args 100000": "--args", "more": "more",
		"--args -1": "--args", "--latency 0": "--latency", "--args 0 --latency 0": "--latency", "--ring 0": "--ring", "--for -1s": "--for",
	} {
		c := newRoot()
		c.SetArgs(append([]string{"subject", "exectrace", "--for", "1ms"}, strings.Fields(args)...))
		err := c.ExecuteContext(t.Context())
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
	ring := newExectrace().Flags().Lookup("ring")
	if ring.DefValue != "1MiB" || exectrace.DefaultRing != 1<<20 {
		t.Errorf("the default of --ring is shown as %s", ring.DefValue)
	}
}
