package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tare/test/long"
	"tare/test/quiet"
)

// TestRead reads the events that go test really prints: it writes a package of each kind, and runs its tests.
func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, file string
		passed     int
		long       int
		failed     []string // each as "name: reason"
		skipped    []string
	}{
		{name: "subtests count, their parent does not", passed: 3,
			file: `func TestA(t *testing.T) { t.Run("x", func(*testing.T) {}); t.Run("y", func(*testing.T) {}) }
			func TestB(t *testing.T) {}`},
		{name: "a reason on several lines", passed: 1, skipped: []string{"TestA/x: needs a dog; and a bone"},
			file: `func TestA(t *testing.T) { t.Run("x", func(t *testing.T) { t.Log("needs a dog"); t.Skip("and a bone") }); t.Run("y", func(*testing.T) {}) }`},
		{name: "of the long suite", long: 1,
			file: "func TestA(t *testing.T) { t.Skip(\"long test: 2 min\") }"},
		{name: "no reason", skipped: []string{"TestA: no reason given"},
			file: `func TestA(t *testing.T) { t.SkipNow() }`},
		{name: "a failure", passed: 1, failed: []string{"TestA: see above"},
			file: `func TestA(t *testing.T) { t.Error("wrong: 7") }
			func TestB(t *testing.T) {}`},
		{name: "a parent that fails by itself", passed: 1, failed: []string{"TestA: see above"},
			file: `func TestA(t *testing.T) { t.Run("x", func(*testing.T) {}); t.Error("after all") }`},
		{name: "a panic", failed: []string{"TestA: see above"},
			file: `func TestA(t *testing.T) { panic("boo") }`},
		{name: "a process that exits under its test", failed: []string{"TestA: did not end"},
			file: `func TestA(t *testing.T) { println("about to"); os.Exit(9) }`},
		{name: "a process that exits before its tests", failed: []string{"example/p: FAIL	example/p	"},
			file: `func TestMain(m *testing.M) { os.Exit(8) }`},
		{name: "does not compile", failed: []string{"example/p: FAIL	example/p [build failed]"},
			file: `func TestA(t *testing.T) { nothing() }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "go.mod"), "module example\n\ngo 1.26\n")
			write(t, filepath.Join(dir, "p", "p_test.go"), "package p\nimport (\"os\"; \"testing\")\nvar _ = os.Exit\n"+c.file)
			cmd := exec.Command("go", "test", "-json", "-vet=off", "./...")
			cmd.Dir = dir
			events, _ := cmd.Output() // go test fails if one of the tests is meant to fail
			got := &tally{}
			if err := got.read(bytes.NewReader(events)); err != nil {
				t.Fatal(err)
			}
			if got.passed != c.passed || got.long != c.long {
				t.Errorf("%d passed, %d long; want %d, %d", got.passed, got.long, c.passed, c.long)
			}
			same(t, "failed", got.failed, c.failed)
			same(t, "skipped", got.lacking, c.skipped)
			if t.Failed() {
				t.Logf("%s", events)
			}
		})
	}
}

// TestHung: if a test does not end, each stack that runs the project's code is printed once.
func TestHung(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module tare\n\ngo 1.26\n")
	write(t, filepath.Join(dir, "p", "p_test.go"), `package p
		import ("bytes"; "os"; "runtime"; "testing")
		func wait(i int) { select {} }
		func TestA(t *testing.T) {
			for i := range 3 { go wait(i) }
			for dump := make([]byte, 1<<16); ; runtime.Gosched() { // as the time limit ends it, once they wait
				if dump := dump[:runtime.Stack(dump, true)]; bytes.Count(dump, []byte("[select (no cases)]")) == 3 {
					os.Stdout.Write(append([]byte("\n"), dump...))
					os.Exit(2)
				}
			}
		}`)
	cmd := exec.Command("go", "test", "-json", "-vet=off", "./...")
	cmd.Dir = dir
	events, _ := cmd.Output() // go test fails, as it should
	got := &tally{}
	if err := got.read(bytes.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	same(t, "failed", got.failed, []string{"p TestA: did not end"})
	if len(got.hung) != 1 || strings.Count(got.hung[0].reason, "tare/p.wait\n") != 1 ||
		!strings.Contains(got.hung[0].reason, "3 goroutines [select (no cases)]:\ntare/p.wait\n") ||
		!strings.Contains(got.hung[0].reason, "1 goroutine [running]:\ntare/p.TestA\n") {
		t.Errorf("hung: %q, of %s", got.hung, events)
	}
	var out strings.Builder
	got.close(&out)
	if !strings.HasPrefix(out.String(), "\np TestA did not end, and was stopped here:\n") {
		t.Errorf("it prints %s", out.String())
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
	y := &tally{passed: 3, long: 2, failed: []outcome{{"checks lint", "see above"}}}
	y.skip("host/perf TestCycles", "needs hardware cycles")
	y.skip("test/e2e TestLimit", quiet.Reason+": 30 % stolen")
	y.skip("test/e2e TestFaults", long.Reason+"2 min: each fault")
	y.close(&out)
	const want = `
Skipped, and why:
  host/perf TestCycles: needs hardware cycles

Skipped because of noise (run them again without it):
  test/e2e TestLimit: needs a quiet machine: 30 % stolen

Failed:
  checks lint: see above

3 long tests not run: make test-long

3 passed, 1 failed, 2 skipped
`
	if out.String() != want {
		t.Errorf("got %s", out.String())
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
