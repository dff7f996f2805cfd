package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/scale/host/cgroup"
)

// TestWeighListsSandboxes: tare weigh finds a container by the name of its control group alone, and the shim of a Kata
// container that is in the control group of a service. Both are processes of this test.
func TestWeighListsSandboxes(t *testing.T) {
	leavesNothing(t)
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	top, id := fmt.Sprintf("/tare-test-%d", os.Getpid()), strings.Repeat("5ad0", 16)
	groups := []string{top, top + "/" + id, top + "/ssh.service"}
	dirs := map[string][]string{}
	for i := range layout.Hierarchies {
		h := &layout.Hierarchies[i]
		if !h.V2 && !h.Has("cpuacct") && !h.Has("memory") {
			continue
		}
		for _, g := range groups {
			dir, _ := h.Dir(g)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(dir) })
			dirs[g] = append(dirs[g], dir)
		}
	}
	start := func(group string, args ...string) {
		t.Helper()
		c := exec.Command("sh")
		c.Args = append([]string{args[0], "-c", "read x"}, args[1:]...)
		in, err := c.StdinPipe() // the shell waits for input until the test ends
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); c.Wait() })
		for _, dir := range dirs[group] {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Appendln(nil, c.Process.Pid), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	start(groups[1], "application")
	start(groups[2], "containerd-shim-kata-v2", "-id", "far")
	o := tare(t, "weigh", "--for", "200ms", "--json")
	if o.code != 0 {
		t.Fatal(o)
	}
	l := readLedger(t, o.stdout)
	found := 0
	for _, s := range l.Sandboxes {
		switch s.ID {
		case id:
			if len(s.Components) != 1 || s.Components[0].Component != "workload" || s.GrossMemory == nil ||
				*s.GrossMemory == 0 || len(s.Processes) != 1 || s.Processes[0].MemoryCgroup != groups[1] {
				t.Errorf("the container is %+v", s)
			}
			found++
		case "far":
			if s.Runtime != "kata" || len(s.Components) != 1 || s.Components[0].Component != "shim" ||
				len(s.Groups) == 0 || s.Groups[0].Place != "service" || s.Groups[0].Memory != nil {
				t.Errorf("the shim is %+v", s)
			}
			found++
		}
	}
	if found != 2 || l.Self.SandboxSeconds == nil || *l.Self.SandboxSeconds > l.Self.CPUSeconds {
		t.Errorf("%d of 2 were found; self is %+v", found, l.Self)
	}
	if text := tare(t, "weigh", "--for", "200ms", "--top", "0").stdout; !strings.Contains(text, id[:12]+"  ") {
		t.Errorf("the account for people does not name it:\n%s", text)
	}
	if text := tare(t, "weigh", "--for", "200ms", "--sandboxes=false").stdout; strings.Contains(text, "Sandboxes:") {
		t.Errorf("sandboxes are listed:\n%s", text)
	}
}
