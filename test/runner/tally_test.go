package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/test/quiet"
)

// The events are those that go test really prints for a package of each kind, so the tests write such packages and run
// them.
func TestGotest(t *testing.T) {
	for _, c := range []struct {
		name, file string
		passed     int
		failed     []string // name: reason
		skipped    []string
		prints     string
	}{
		{name: "subtests count, their parent does not", passed: 3,
			file: `func TestA(t *testing.T) { t.Run("x", func(*testing.T) {}); t.Run("y", func(*testing.T) {}) }
			func TestB(t *testing.T) {}`},
		{name: "a reason on several lines", passed: 1, skipped: []string{"TestA/x: needs a dog; and a bone"},
			file: `func TestA(t *testing.T) { t.Run("x", func(t *testing.T) { t.Log("needs a dog"); t.Skip("and a bone") }); t.Run("y", func(*testing.T) {}) }`},
		{name: "no reason", skipped: []string{"TestA: no reason given"},
			file: `func TestA(t *testing.T) { t.SkipNow() }`},
		{name: "a failure", passed: 1, failed: []string{"TestA: see above"}, prints: "wrong: 7",
			file: `func TestA(t *testing.T) { t.Error("wrong: 7") }
			func TestB(t *testing.T) {}`},
		{name: "a parent that fails by itself", passed: 1, failed: []string{"TestA: see above"}, prints: "after all",
			file: `func TestA(t *testing.T) { t.Run("x", func(*testing.T) {}); t.Error("after all") }`},
		{name: "a panic", failed: []string{"TestA: see above"}, prints: "panic: boo",
			file: `func TestA(t *testing.T) { panic("boo") }`},
		{name: "a process that exits under its test", failed: []string{"TestA: did not end"}, prints: "about to",
			file: `func TestA(t *testing.T) { println("about to"); os.Exit(9) }`},
		{name: "a process that exits before its tests", failed: []string{": FAIL	example/p	"}, prints: "exit status 8",
			file: `func TestMain(m *testing.M) { os.Exit(8) }`},
		{name: "does not compile", failed: []string{"example/p: FAIL	example/p [build failed]"}, prints: "undefined: nothing",
			file: `func TestA(t *testing.T) { nothing() }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			write(t, filepath.Join(dir, "go.mod"), "module example\n\ngo 1.26\n")
			write(t, filepath.Join(dir, "p", "p_test.go"), "package p\nimport (\"os\"; \"testing\")\nvar _ = os.Exit\n"+c.file)
			var out strings.Builder
			got := &tally{w: &out}
			if err := gotest(t.Context(), got, 1, []string{"./..."}); err != nil {
				t.Fatal(err)
			}
			if got.passed != c.passed {
				t.Errorf("%d passed, want %d", got.passed, c.passed)
			}
			same(t, "failed", got.failed, c.failed)
			same(t, "skipped", got.skipped, c.skipped)
			if !strings.Contains(out.String(), c.prints) {
				t.Errorf("it did not print %q", c.prints)
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}

func same(t *testing.T, what string, got []outcome, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
		return
	}
	for i := range want {
		if s := got[i].name + ": " + got[i].reason; !strings.Contains(s, want[i]) {
			t.Errorf("%s: got %q, want %q", what, s, want[i])
		}
	}
}

func TestClose(t *testing.T) {
	var out strings.Builder
	y := &tally{w: &out, passed: 3}
	y.skip("host/perf TestCycles", "needs hardware cycles")
	y.skip("test/e2e TestLimit", quiet.Reason+": 30 % stolen")
	y.fail("vet", "see above")
	y.close(61 * time.Second)
	const want = `
Skipped, and why:
  host/perf TestCycles: needs hardware cycles

Skipped, for the machine was too noisy (run them again when it is not):
  test/e2e TestLimit: needs a quiet machine: 30 % stolen

Failed:
  vet: see above

3 passed, 1 failed, 2 skipped (1m1s)
`
	if out.String() != want {
		t.Errorf("got %s", out.String())
	}
}

func TestChoose(t *testing.T) {
	if s, err := choose([]string{"unit", "vet"}); err != nil || len(s) != 2 || s[0].name != "vet" {
		t.Errorf("got %v, %v", s, err)
	}
	if _, err := choose([]string{"unti"}); err == nil || !strings.Contains(err.Error(), "unit") {
		t.Errorf("got %v", err)
	}
}

func TestCompareTree(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for name, data := range map[string]string{"a": "1", "b/c": "2", "b/gone": "3", "same": "4", "bin/x": "5"} {
		write(t, filepath.Join(from, name), data)
	}
	before, err := copyTree(from, to)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := compareTree(to, before); err != nil || len(d) != 0 || len(before) != 4 {
		t.Fatalf("a fresh copy of %d files: got %q, %v", len(before), d, err)
	}
	write(t, filepath.Join(to, "b/c"), "22")
	write(t, filepath.Join(to, "new"), "")
	if err := os.Remove(filepath.Join(to, "b/gone")); err != nil {
		t.Fatal(err)
	}
	got, err := compareTree(to, before)
	if err != nil {
		t.Fatal(err)
	}
	want := "  b/c (1 bytes in the tree, 2 made again)\n  new (not in the tree)\n  b/gone (no longer made)"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}
