package e2e

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
)

func TestHelp(t *testing.T) {
	leavesNothing(t)
	o := tare(t, "--help")
	if o.code != 0 || o.stderr != "" || !strings.Contains(o.stdout, "Tare weighs") {
		t.Errorf("tare --help: %s", o)
	}
}

// TestWrongUse: wrong use ends with exit code 2, the hint on standard error, and nothing on standard output.
func TestWrongUse(t *testing.T) {
	leavesNothing(t)
	for _, c := range []struct{ args, says, hint string }{
		{"wiegh", "wiegh", "tare --help"},
		{"--verbsoe", "--verbsoe", "tare --help"},
		{"app htpt", "htpt", "tare app --help"},
		{"app http unasked", "unasked", "tare app http --help"},
		{"app http --body many", "many", "tare app http --help"},
	} {
		t.Run(c.args, func(t *testing.T) {
			o := tare(t, strings.Fields(c.args)...)
			if o.code != 2 || o.stdout != "" || !strings.Contains(o.stderr, c.says) || !strings.Contains(o.stderr, c.hint) {
				t.Errorf("want exit code 2, and %q and %q on standard error: %s", c.says, c.hint, o)
			}
		})
	}
}

// TestEveryCommand: every command says what it is for, shows an example, and refuses a flag that it does not know.
func TestEveryCommand(t *testing.T) {
	t.Parallel()
	leavesNothing(t)
	for _, path := range commands(t, nil) {
		t.Run(strings.Join(path, " "), func(t *testing.T) {
			o := tare(t, append(path, "--help")...)
			if o.code != 0 || o.stderr != "" {
				t.Fatalf("--help: %s", o)
			}
			if !strings.Contains(o.stdout, "\nExamples:\n") {
				t.Errorf("its help shows no example:\n%s", o.stdout)
			}
			if o = tare(t, append(path, "--no-such-flag")...); o.code != 2 || o.stdout != "" {
				t.Errorf("--no-such-flag: want exit code 2: %s", o)
			}
		})
	}
}

// The list of subcommands in cobra's help: lines of two spaces, a name, and what it is.
var (
	available = regexp.MustCompile(`(?m)^Available Commands:\n((?:  .*\n)+)`)
	subname   = regexp.MustCompile(`(?m)^  (\S+)`)
)

// commands finds the path of every command below the given one by its help.
func commands(t *testing.T, above []string) (found [][]string) {
	t.Helper()
	o := tare(t, append(above[:len(above):len(above)], "--help")...)
	list := available.FindStringSubmatch(o.stdout)
	if list == nil {
		return nil
	}
	for _, name := range subname.FindAllStringSubmatch(list[1], -1) {
		if name[1] == "help" {
			continue
		}
		path := append(above[:len(above):len(above)], name[1])
		found = append(found, path)
		found = append(found, commands(t, path)...)
	}
	return found
}

// TestSignalsEndAServer: a command that runs until a signal stops it then exits with 0.
func TestSignalsEndAServer(t *testing.T) {
	leavesNothing(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			p := command{args: []string{"app", "http"}}.start(t)
			p.waitFor(t, "serving http://127.0.0.1:")
			p.signal(t, s)
			if o := p.wait(t); o.code != 0 || o.stderr != "" {
				t.Errorf("after %s: %s", s, o)
			}
		})
	}
}
