package cli

import (
	"regexp"
	"strings"
	"testing"

	"tare/internal/lib/self"
	"tare/test/vm/guest"
)

// TestMicrovmVersion: engines ask an OCI runtime for its version, and read the answer in runc's form.
func TestMicrovmVersion(t *testing.T) {
	guest.KernelFree(t)
	var out strings.Builder
	cmd := newMicrovm()
	cmd.SetArgs([]string{"--version"})
	cmd.SetOut(&out)
	want := regexp.MustCompile(`^tare microvm version ` + regexp.QuoteMeta(self.Version) + `\nspec: 1\.\d+\.\d+\n$`)
	if err := cmd.Execute(); err != nil || !want.MatchString(out.String()) {
		t.Errorf("%v: %q", err, out.String())
	}
}
