package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == turnCommand {
		fmt.Fprintln(os.Stderr, takeTurn(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestTurns: packages' tests run one at a time, although go test has several of them under way.
func TestTurns(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	log := filepath.Join(dir, "log")
	write(t, filepath.Join(dir, "go.mod"), "module example\n\ngo 1.26\n")
	for _, p := range []string{"a", "b", "c", "d"} {
		write(t, filepath.Join(dir, p, "p_test.go"), fmt.Sprintf(`package p
import ("os"; "testing"; "time")
func say(t *testing.T, what string) {
	f, err := os.OpenFile(%q, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil { t.Fatal(err) }
	f.WriteString(what+"\n"); f.Close()
}
func TestA(t *testing.T) { say(t, "begin"); time.Sleep(time.Second); say(t, "end") }
`, log))
	}
	var out strings.Builder
	got := &tally{w: &out}
	if err := gotest(t.Context(), got, []string{"./..."}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("begin\nend\n", 4); string(text) != want || got.passed != 4 || len(got.failed) > 0 {
		t.Errorf("%d passed, %q failed; they said\n%s\n%s", got.passed, got.failed, text, &out)
	}
}
