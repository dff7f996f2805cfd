// Package terminal runs programs in a terminal for tests, as a person does, by tmux.
package terminal

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/test/owned"
)

// Terminal is a terminal of tmux with a program in it. Its tmux server belongs to the test, and ends with it.
type Terminal struct {
	t   *testing.T
	dir string // of tmux's socket, and of the file with the program's process ID
}

// New starts a program in a terminal of 80x24. When the program has ended, the terminal shows its exit status, and
// stays. The test is skipped if there is no tmux.
func New(t *testing.T, program string, args ...string) *Terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("needs tmux: run test/setup")
	}
	dir, err := owned.TempDir("tmux") // and not t.TempDir, because the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	m := &Terminal{t, dir}
	t.Cleanup(func() {
		_ = m.command("kill-server").Run() // the server may have failed to start
		os.RemoveAll(dir)
	})
	const script = `cd "$1"; shift; sh -c 'echo $$ > pid; exec "$0" "$@"' "$@"; echo "ended with $?"; exec sleep 1000`
	m.Do(append([]string{"new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", script, "sh", dir, program}, args...)...)
	return m
}

func (m *Terminal) command(args ...string) *exec.Cmd {
	c := exec.Command("tmux", append([]string{"-u", "-f", "/dev/null", "-S", filepath.Join(m.dir, "socket")}, args...)...)
	c.Env = append(os.Environ(), "TMUX=", "LC_ALL=C.UTF-8")
	return c
}

// Do runs a command of tmux on the terminal's server, and returns its output. It fails the test if the command fails.
func (m *Terminal) Do(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

// Screen returns the text on the screen, without colours.
func (m *Terminal) Screen() string { return m.Do("capture-pane", "-p") }

// Coloured reports whether anything on the screen has one of the sixteen basic colours.
func (m *Terminal) Coloured() bool {
	return regexp.MustCompile(`\x1b\[[0-9;]*\b[39][0-7]m`).MatchString(m.Do("capture-pane", "-p", "-e"))
}

// Is returns the value of a variable of tmux; tmux(1) lists them.
func (m *Terminal) Is(variable string) string {
	return strings.TrimSpace(m.Do("display-message", "-p", "#{"+variable+"}"))
}

// Until waits until the screen shows a text, and returns the screen.
func (m *Terminal) Until(text string) string {
	m.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if s := m.Screen(); strings.Contains(s, text) {
			return s
		} else if time.Now().After(deadline) {
			m.t.Fatalf("the screen does not show %q:\n%s", text, s)
		}
	}
}

// Keys presses keys, each by the name that tmux has for it, or as its character.
func (m *Terminal) Keys(keys ...string) {
	m.t.Helper()
	m.Do(append([]string{"send-keys"}, keys...)...)
}

// Restored checks that the program has ended with the given exit status, that the terminal's modes are as before it
// started, and that the screen of tare top is gone.
func (m *Terminal) Restored(status string) {
	m.t.Helper()
	m.Until("ended with " + status)
	for variable, want := range map[string]string{"alternate_on": "0", "cursor_flag": "1", "mouse_any_flag": "0",
		"keypad_flag": "0"} {
		if got := m.Is(variable); got != want {
			m.t.Errorf("afterwards %s is %q, not %q", variable, got, want)
		}
	}
	if s := m.Screen(); strings.Contains(s, "tare top ") {
		m.t.Errorf("afterwards the screen has\n%s", s)
	}
}

// Signal sends a signal to the program.
func (m *Terminal) Signal(s syscall.Signal) {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, "pid"))
	if err != nil {
		m.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = syscall.Kill(pid, s)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}
