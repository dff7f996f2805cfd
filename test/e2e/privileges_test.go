package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var capabilities = regexp.MustCompile(`(?m)^(Cap(?:Prm|Eff|Amb)|NoNewPrivs):\s*(\S+)$`)

// TestLoadsHaveNoPrivileges: once applications and loads are set up, they have no capability, and can get none back.
func TestLoadsHaveNoPrivileges(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	leavesNothing(t)
	spec := `name: privileges
question: What may they do?
blocks: 1
duration: 1s
applications: {server: {kind: http}, mesh: {kind: mesh}, busy: {kind: burn, share: 0.1}}
loads:
  client: {kind: http, to: server, rate: 100}
  execs: {kind: exec, rate: 10}
  writes: {kind: write, rate: 10}
  delays: {kind: probe}
arms: {more: {subject: variant, set: "client.rate=200"}}
gates: {rate: 0.01, errors: 1, lag: 60s, generator_cpu: 1}
`
	p := command{args: []string{"run", specFile(t, spec), "--out", filepath.Join(t.TempDir(), "out")}}.start(t)
	const parts = 7
	seen := map[string]bool{}
	whileItRuns(t, p, func() bool {
		for name, status := range roles(t, p.pid) {
			if keeps(status, nil) {
				seen[name] = true
			}
		}
		return len(seen) == parts
	})
	if o := p.wait(t); o.code != 0 && o.code != 4 || len(seen) != parts {
		t.Errorf("%d processes without privileges, want %d: %v; %s", len(seen), parts, seen, o)
	}
}

// roles returns the processes of applications and loads below a run, by their arguments, with /proc/PID/status of each
// of their threads.
func roles(t *testing.T, parent int) map[string]string {
	t.Helper()
	found := map[string]string{}
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range cmdlines {
		line, _ := os.ReadFile(path) // it may have gone
		args := bytes.Split(line, []byte{0})
		dir := filepath.Dir(path)
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || parentOf(string(stat)) != parent || len(args) < 4 {
			continue
		}
		// tare _play app http ..., tare _play load write ...
		name := fmt.Sprintf("%s %s %s", args[1], args[2], args[3])
		if !regexp.MustCompile(`^_play (app|load) `).MatchString(name) {
			continue
		}
		threads, _ := filepath.Glob(filepath.Join(dir, "task", "*", "status"))
		for _, thread := range threads {
			status, _ := os.ReadFile(thread)
			found[name] += string(status)
		}
	}
	return found
}
