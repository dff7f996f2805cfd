package self

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain is also the process that prints its own path and name, and the one that calls replaced.
func TestMain(m *testing.M) {
	switch os.Getenv("TARE_TEST_SELF") {
	case "say":
		path, err := Path()
		comm, _ := os.ReadFile("/proc/self/comm")
		fmt.Printf("%s %v %s", path, err, bytes.TrimSpace(comm))
		os.Exit(0)
	case "link": // replace the binary, and then start it by the link and by the name
		err := replaced(os.Args[1])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func replaced(dir string) error {
	by, err := Link(dir)
	if err != nil {
		return err
	}
	name, err := os.Executable()
	if err != nil {
		return err
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("#!/bin/sh\necho replaced\n"), 0o755); err != nil {
		return err
	}
	if err := os.Rename(other, name); err != nil {
		return err
	}
	for _, path := range []string{by, name} {
		cmd := exec.Command(path)
		cmd.Env = append(os.Environ(), "TARE_TEST_SELF=say")
		out, err := cmd.CombinedOutput()
		fmt.Printf("%s\n", bytes.TrimSpace(out))
		if err != nil {
			return err
		}
	}
	return nil
}

// TestReplaced: a process started by the path from Link runs the same binary, even if the file was replaced, and has
// that path as its own. A process started by the file's name runs the new binary.
func TestReplaced(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "binary")
	data, err := os.ReadFile(own)
	if err := errors.Join(err, os.WriteFile(binary, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, dir)
	cmd.Env = append(os.Environ(), "TARE_TEST_SELF=link")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := filepath.Join(dir, "tare") + " <nil> tare\nreplaced\n"; string(out) != want {
		t.Errorf("it said %q, want %q", out, want)
	}
}

// TestPathOfAnotherName: Path is not fooled by a first argument that another user chose.
func TestPathOfAnotherName(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tare", "/bin/sh", "/nowhere/tare"} {
		cmd := exec.Command(own)
		cmd.Args[0], cmd.Env = name, append(os.Environ(), "TARE_TEST_SELF=say")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), own+" <nil>") {
			t.Errorf("started as %s: %q, %v", name, out, err)
		}
	}
}
