package oom

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"tare/internal/experiment/placement"
	"tare/internal/scale/host/cgroup"
)

// TestMain also runs as the victim, a process that takes more memory than its limit.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(os.Args) > 1 && os.Args[1] == "hungry" {
		var all [][]byte
		for range 1 << 10 {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			all = append(all, b)
		}
		os.Exit(len(all) & 1)
	}
	os.Exit(m.Run())
}

// TestVictims: a process that exceeds the limit of its group is reported, with its program and the group.
func TestVictims(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: BPF and control groups")
	}
	w, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.Controller("memory")
	if !ok {
		t.Skip("needs the memory controller")
	}
	tree, err := placement.NewTree(layout, "oom")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	}()
	g, err := tree.Group("small", placement.Limits{MemoryBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := h.Dir(g.Path())
	if n := cgroup.OOMKills(dir); !n.OK || n.N != 0 {
		t.Errorf("the group's kernel counter is %+v before", n)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "hungry")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("it was not killed: %v", err)
	}
	all, err := w.Victims()
	if err != nil {
		t.Fatal(err)
	}
	id, err := cgroup.ID(dir)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Base(self)
	want := Victim{PID: cmd.Process.Pid, Comm: base[:min(15, len(base))], Program: base, Group: id, GroupName: "small",
		Limit: 32 << 20, Limited: id}
	if !slices.Contains(all, want) { // others of the machine may be there as well
		t.Errorf("%+v, want %+v", all, want)
	}
	if n := cgroup.OOMKills(dir); !n.OK || n.N != 1 {
		t.Errorf("the group's kernel counter is %+v", n)
	}
	if again, err := w.Victims(); err != nil || slices.Contains(again, want) {
		t.Errorf("read again: %+v, %v", again, err)
	}
}

// TestLayout: the Go structure has the size of the program's.
func TestLayout(t *testing.T) {
	spec, err := loadOom()
	if err != nil {
		t.Fatal(err)
	}
	if m := spec.Maps["tare_victims"]; int(m.ValueSize) != binary.Size(victim{}) || m.MaxEntries != maxVictims {
		t.Errorf("%d values of %d bytes, want %d of %d", m.MaxEntries, m.ValueSize, maxVictims, binary.Size(victim{}))
	}
}
