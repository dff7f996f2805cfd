// Package docpage reads the examples of a documentation page: commands, each with the output that the page shows. Tests
// run the commands, and compare what they print.
package docpage

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Example is a command, and the lines of its output that a page shows.
type Example struct {
	Command string
	Output  []string
}

// Read returns the examples of a page. A command is on a line that begins with "$ " in an indented code block. It
// continues after a line that ends with a backslash and, if it contains <<END, up to the line END. Its output is the
// rest of the block.
func Read(path string) (all []Example, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the page: %w", err)
	}
	goesOn := false
	for line := range strings.Lines(string(data)) {
		code, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		command, begins := strings.CutPrefix(code, "$ ")
		switch {
		case !is && !goesOn:
		case begins:
			all = append(all, Example{Command: command})
			goesOn = strings.HasSuffix(command, `\`) || strings.Contains(command, "<<END")
		case goesOn:
			of := &all[len(all)-1]
			of.Command += "\n" + code
			goesOn = strings.HasSuffix(code, `\`) || strings.Contains(of.Command, "<<END") && code != "END"
		case len(all) > 0:
			of := &all[len(all)-1]
			of.Output = append(of.Output, code)
		}
	}
	return all, nil
}

// Run runs the examples of a page in order in a new directory, with the given environment variables added. It fails the
// test if an example fails, or if no line of the actual output begins with the same words as a line of output on the
// page. Figures may differ.
func Run(t *testing.T, path string, env ...string) {
	t.Helper()
	all, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, e := range all {
		cmd := exec.Command("bash", "-c", e.Command)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		t.Logf("$ %s\n%s", e.Command, out)
		if err != nil {
			t.Fatal(err)
		}
		is := map[string]bool{"": true, "...": true}
		for line := range strings.Lines(string(out)) {
			is[beginning(line)] = true
		}
		for _, line := range e.Output {
			if !is[beginning(line)] {
				t.Errorf("no line of the output begins like %q on the page", line)
			}
		}
		if len(e.Output) == 0 && !strings.Contains(e.Command, "<<END") {
			t.Errorf("the page shows no output of %s", e.Command)
		}
	}
}

// beginning returns the part of a line of output that is the same on every machine: at most three words before the
// first figure.
func beginning(line string) string {
	if i := strings.IndexAny(line, "0123456789"); i >= 0 {
		line = line[:i]
	}
	words := strings.Fields(line)
	return strings.Join(words[:min(len(words), 3)], " ")
}
