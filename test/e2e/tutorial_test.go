package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tare/test/long"
)

// documented is a command of a page, and what the page shows of its output.
type documented struct {
	command string
	output  []string
}

// commandsOf are the commands of a page's examples: lines that begin with "$ ", and what follows in the same block.
func commandsOf(t *testing.T, page string) (all []documented) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		code, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		command, begins := strings.CutPrefix(code, "$ ")
		switch {
		case is && begins:
			all = append(all, documented{command: command})
		case is && len(all) > 0:
			last := &all[len(all)-1]
			if strings.HasSuffix(last.command, `\`) && len(last.output) == 0 {
				last.command += "\n" + code
				continue
			}
			last.output = append(last.output, code)
		}
	}
	return all
}

// beginning is what a line of output begins with on every machine: at most three words before the first figure.
func beginning(line string) string {
	if i := strings.IndexAny(line, "0123456789"); i >= 0 {
		line = line[:i]
	}
	words := strings.Fields(line)
	return strings.Join(words[:min(len(words), 3)], " ")
}

// TestTutorial: the commands of the tutorial work, one after the other, and print what the page shows of them but for
// the figures: each of its lines begins as some line of the output does.
func TestTutorial(t *testing.T) {
	long.Test(t, "2 min: two runs of 6 blocks, as a reader has them")
	leavesNothing(t)
	dir := t.TempDir()
	path := filepath.Dir(bin) + string(os.PathListSeparator) + os.Getenv("PATH")
	for _, c := range commandsOf(t, "tutorial.md") {
		cmd := exec.Command("bash", "-c", c.command)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+path, "COLUMNS=100")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.command, err, out)
		}
		is := map[string]bool{"": true, "...": true}
		for line := range strings.Lines(string(out)) {
			is[beginning(line)] = true
		}
		for _, line := range c.output {
			if !is[beginning(line)] {
				t.Errorf("%s: no line begins as %q of the page does:\n%s", c.command, line, out)
			}
		}
		if len(c.output) == 0 {
			t.Errorf("the page shows nothing of %s", c.command)
		}
	}
}
