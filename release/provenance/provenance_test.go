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

	"tare/internal/lib/self"
	"tare/test/binary"
	"tare/test/long"
)

// The same commit makes the same bytes wherever its checkout lies, and the binary says where it comes from.
func TestReproducible(t *testing.T) {
	long.Test(t, "180 s of CPU time: it compiles the programs twice, without a cache")
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
		built[i] = filepath.Join(dir, "bin")
	}
	for _, program := range []string{"tare", "tare-agent"} {
		first, second := read(t, filepath.Join(built[0], program)), read(t, filepath.Join(built[1], program))
		if !bytes.Equal(first, second) {
			t.Errorf("two builds of %s from one commit differ (%d and %d bytes)", program, len(first), len(second))
		}
	}

	tare := filepath.Join(built[1], "tare")
	s, err := stateOf(tare, self.Version)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stateOf(tare, "99.99.99"); err == nil || !strings.Contains(err.Error(), "99.99.99") {
		t.Errorf("of another version: error %v", err)
	}
	d := s.Predicate.BuildDefinition
	if d.ResolvedDependencies[0].Digest["gitCommit"] != commit || len(d.ResolvedDependencies) < 20 ||
		d.InternalParameters["-trimpath"] != "true" || d.InternalParameters["CGO_ENABLED"] != "0" {
		t.Errorf("commit %s, with %d dependencies, parameters %v", commit, len(d.ResolvedDependencies), d.InternalParameters)
	}
	sum, _, _ := strings.Cut(command("", "sha256sum", filepath.Join(built[0], "tare")), " ")
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
	if _, err := stateOf(test, self.Version); err == nil || !strings.Contains(err.Error(), "commit") {
		t.Errorf("error %v", err)
	}
	if _, err := stateOf("provenance_test.go", self.Version); err == nil {
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
