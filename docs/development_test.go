package docs

import (
	"os/exec"
	"strings"
	"testing"
)

// TestLongTestsAreListed: the page lists the tests of the long suite, with their durations. Simulations share a row.
func TestLongTestsAreListed(t *testing.T) {
	out, err := exec.Command("../test/long/list").Output()
	if err != nil {
		t.Fatal(err)
	}
	page, tests := read(t, "development.md"), 0
	for _, name := range strings.Fields(string(out)) {
		if !strings.HasPrefix(name, "Test") || strings.HasSuffix(name, "BySimulation") {
			continue
		}
		tests++
		if !strings.Contains(page, name) {
			t.Errorf("development.md does not list %s", name)
		}
	}
	if tests < 50 {
		t.Errorf("test/long/list prints %d tests", tests)
	}
}
