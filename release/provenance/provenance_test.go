package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tare/test/binary"
)

// The same commit makes the same bytes wherever its checkout lies, and the binary says where it comes from.
func TestReproducible(t *testing.T) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, ".git")); errors.Is(err, os.ErrNotExist) {
		t.Skip("this is no git checkout, so a binary cannot say which commit it is from")
	}
	command := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=true")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := command(root, "git", "rev-parse", "HEAD")
	var built [2]string
	for i, name := range []string{"a", "another-place"} {
		dir := filepath.Join(t.TempDir(), name)
		command(root, "git", "clone", "--quiet", "--no-hardlinks", root, dir)
		// The charts, where there are any, are those of this tree: they come from Node, which not every machine has.
		if _, err := os.Stat(filepath.Join(root, "web", "dist", "report.js")); err == nil {
			command(dir, "cp", "-r", filepath.Join(root, "web", "dist"), "web/")
		}
		command(dir, "make", "build")
		built[i] = filepath.Join(dir, "bin", "tare")
	}
	first, second := read(t, built[0]), read(t, built[1])
	if !bytes.Equal(first, second) {
		t.Errorf("two builds of one commit differ (%d and %d bytes)", len(first), len(second))
	}

	s, err := stateOf(built[1])
	if err != nil {
		t.Fatal(err)
	}
	d := s.Predicate.BuildDefinition
	if d.ResolvedDependencies[0].Digest["gitCommit"] != commit || len(d.ResolvedDependencies) < 20 ||
		d.InternalParameters["-trimpath"] != "true" || d.InternalParameters["CGO_ENABLED"] != "0" {
		t.Errorf("commit %s, with %d dependencies, parameters %v", commit, len(d.ResolvedDependencies), d.InternalParameters)
	}
	sum, _, _ := strings.Cut(command("", "sha256sum", built[0]), " ")
	if s.Subject[0].Digest["sha256"] != sum {
		t.Errorf("the statement is of %v, the binary is %s", s.Subject[0], sum)
	}
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
}

// What was not built from a commit has no provenance.
func TestNoProvenance(t *testing.T) {
	test, err := os.Executable() // Go does not stamp the commit into tests
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stateOf(test); err == nil || !strings.Contains(err.Error(), "commit") {
		t.Errorf("error %v", err)
	}
	if _, err := stateOf("provenance_test.go"); err == nil {
		t.Error("a text has a provenance")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
