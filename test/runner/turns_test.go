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

// TestTurns: no more packages' tests run at a time than are to, although go test has more of them under way.
func TestTurns(t *testing.T) {
	for _, atOnce := range []int{1, 2} {
		t.Run(fmt.Sprint(atOnce), func(t *testing.T) { takesTurns(t, atOnce) })
	}
}

func takesTurns(t *testing.T, atOnce int) {
	dir := t.TempDir()
	t.Chdir(dir)
	log := filepath.Join(dir, "log")
	write(t, filepath.Join(dir, "go.mod"), "module example\n\ngo 1.26\n")
	packages := []string{"a", "b", "c", "d"}
	for _, p := range packages {
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
	if err := gotest(t.Context(), got, atOnce, []string{"./..."}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	running, most := 0, 0
	for said := range strings.FieldsSeq(string(text)) {
		if said == "begin" {
			running++
		} else {
			running--
		}
		most = max(most, running)
	}
	if most > atOnce || running != 0 || strings.Count(string(text), "begin") != len(packages) || got.passed != len(packages) || len(got.failed) > 0 {
		t.Errorf("%d at once; %d passed, %q failed; they said\n%s\n%s", most, got.passed, got.failed, text, &out)
	}
}
