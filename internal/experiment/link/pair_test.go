package link

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// TestMakePair: the far end is created in the namespace and nowhere else, even if the process that ran there has ended
// and another process has its PID.
func TestMakePair(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	n, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	stranger, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	run := func(n *Namespace) (c *exec.Cmd) {
		c = exec.Command("cat")
		stdin, err := c.StdinPipe()
		if err == nil {
			err = n.Do(c.Start)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stdin.Close(); _ = c.Wait() })
		return c
	}
	first := run(n)
	_ = first.Process.Kill()
	_ = first.Wait()
	for again := false; !again; {
		last := []byte(strconv.Itoa(first.Process.Pid - 1))
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", last, 0); err != nil {
			t.Skipf("needs CONFIG_CHECKPOINT_RESTORE: %v", err)
		}
		again = run(stranger).Process.Pid == first.Process.Pid // another process may have taken it first
	}

	const here, there = "tarepair0", "tarepair1"
	if err := MakePair(here, there, n); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Remove(here, ""); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		name string
		in   *Namespace
		want bool
	}{{"its namespace", n, true}, {"that of the stranger", stranger, false}} {
		err := c.in.Do(func() error { _, err := net.InterfaceByName(there); return err })
		if (err == nil) != c.want {
			t.Errorf("the far end in %s: %v", c.name, err)
		}
	}
}
