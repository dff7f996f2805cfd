package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/test/kernels"
)

var update = flag.Bool("update", false, "write docs/kernels.md anew")

// TestKernelsPage checks that docs/kernels.md agrees with the declarations of features and the record of the tests.
func TestKernelsPage(t *testing.T) {
	machines, err := kernels.Read()
	if err != nil {
		t.Fatal(err)
	}
	var declared []feature.Status
	for _, p := range features() {
		declared = append(declared, p.Status())
	}
	var b bytes.Buffer
	if err := kernels.Write(&b, machines, declared); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(filepath.Join("..", "..", "docs", "kernels.md"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if readPage(t, "kernels.md") != b.String() {
		t.Error("docs/kernels.md is not current: go test ./internal/cli -run TestKernelsPage -update")
	}
	for _, m := range machines {
		for _, s := range declared {
			if _, there := m.Features[s.Name]; !there {
				t.Errorf("test/kernels/kernels.json says nothing of %s on %s %s", s.Name, m.Kernel, m.Mode)
			}
		}
	}
}

// TestKernelsRestOnTests: every test that docs/kernels.md names exists.
func TestKernelsRestOnTests(t *testing.T) {
	for dir, names := range kernels.Tests() {
		there := testsIn(t, filepath.Join("..", "..", filepath.FromSlash(dir)))
		for _, name := range names {
			if !slices.Contains(there, name) {
				t.Errorf("%s has no %s", dir, name)
			}
		}
	}
}

// testsIn returns the names of the test functions in a directory.
func testsIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// TestKernelAtHand compares the record with this machine, if the record has a machine of this kind.
func TestKernelAtHand(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: features are tried out")
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := diagnose(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	doctor, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	found, err := kernels.Parse(doctor, layout.Mode)
	if err != nil {
		t.Fatal(err)
	}
	differs, err := kernels.Check(found)
	if errors.Is(err, kernels.ErrUnknown) {
		t.Skipf("needs a machine of a recorded kind: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differs {
		// Hardware counters and lockdown depend on the machine and not on the kernel.
		if strings.HasPrefix(d, "hardware-cycles ") || strings.HasPrefix(d, "bpf-trampolines ") {
			t.Log(d)
			continue
		}
		t.Error(d)
	}
}
