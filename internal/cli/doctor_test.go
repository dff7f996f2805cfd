package cli

import (
	"slices"
	"strings"
	"testing"

	"tare/internal/scale/host/feature"
	"tare/test/vm/guest"
)

// TestDoctorLoadsNoModules: what makes the kernel load modules is listed as not tried, with the flag that tries it.
func TestDoctorLoadsNoModules(t *testing.T) {
	guest.KernelFree(t)
	var untried []feature.Status
	var names []string
	for _, p := range guestFeatures() {
		if s, leaves := p.Untried(); leaves {
			untried, names = append(untried, s), append(names, s.Name)
		}
	}
	slices.Sort(names)
	if want := []string{"redirect-ebpf", "redirect-iptables", "redirect-tproxy"}; !slices.Equal(names, want) {
		t.Errorf("%q are not tried, want %q", names, want)
	}
	var b strings.Builder
	printStatuses(&b, untried)
	for _, s := range untried {
		if !s.Untried || s.Available || !strings.Contains(b.String(), "?    "+s.Name) &&
			!strings.Contains(b.String(), "?    "+s.Name+" ") {
			t.Errorf("%+v is printed as\n%s", s, b.String())
		}
	}
	if !strings.Contains(b.String(), "try    tare doctor --load-modules") || strings.Contains(b.String(), "fix ") {
		t.Errorf("how to try them is not printed:\n%s", b.String())
	}
}
