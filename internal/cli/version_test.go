package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"tare/internal/lib/self"
	"tare/internal/scale/host/feature"
	"tare/test/vm/guest"
)

// TestVersion: the version names the build and what it needs of a kernel, for people and for programs.
func TestVersion(t *testing.T) {
	guest.KernelFree(t)
	said := func(args ...string) string {
		var out strings.Builder
		cmd := newVersion()
		cmd.SetArgs(append([]string{}, args...))
		cmd.SetOut(&out)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, want := range []string{"tare      " + self.Version + "\n", "\nrequired  cgroups ",
		"Linux " + feature.LeastKernel + " or newer"} {
		if text := said(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	var v versionDocument
	if err := json.Unmarshal([]byte(said("--json")), &v); err != nil || v.Version != self.Version ||
		len(v.Kernel.Features) == 0 {
		t.Errorf("%v: %+v", err, v)
	}
}
