package e2e

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

	"tare/test/schematest"
)

// tmux is a terminal with a program in it. The server of the terminal is the test's, and ends with it.
type tmux struct {
	t   *testing.T
	dir string // of the socket, and the file with the number of the process
}

// newTmux starts tare in a terminal of 80x24. When it has ended, the terminal says so, and stays.
func newTmux(t *testing.T, args ...string) *tmux {
	t.Helper()
	needsPrograms(t, "tmux")
	dir, err := os.MkdirTemp("", "tare-test-tmux-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	m := &tmux{t, dir}
	t.Cleanup(func() {
		_ = m.command("kill-server").Run() // it may have failed to start
		os.RemoveAll(dir)
	})
	const script = `cd "$1"; shift; sh -c 'echo $$ > pid; exec "$0" "$@"' "$@"; echo "ended with $?"; exec sleep 1000`
	m.do(append([]string{"new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", script, "sh", dir, bin}, args...)...)
	return m
}

func (m *tmux) command(args ...string) *exec.Cmd {
	c := exec.Command("tmux", append([]string{"-u", "-f", "/dev/null", "-S", filepath.Join(m.dir, "socket")}, args...)...)
	c.Env = append(os.Environ(), "TMUX=", "LC_ALL=C.UTF-8")
	return c
}

func (m *tmux) do(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (m *tmux) screen() string { return m.do("capture-pane", "-p") }

// coloured says whether the screen has a colour of the sixteen.
func (m *tmux) coloured() bool {
	return regexp.MustCompile(`\x1b\[[0-9;]*\b[39][0-7]m`).MatchString(m.do("capture-pane", "-p", "-e"))
}

// is gives a variable of tmux, as tmux(1) lists them.
func (m *tmux) is(variable string) string {
	return strings.TrimSpace(m.do("display-message", "-p", "#{"+variable+"}"))
}

// until waits until the screen has a text, and gives the screen.
func (m *tmux) until(text string) string {
	m.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if s := m.screen(); strings.Contains(s, text) {
			return s
		} else if time.Now().After(deadline) {
			m.t.Fatalf("the screen does not show %q:\n%s", text, s)
		}
	}
}

// keys presses keys, each by the name that tmux has for it, or as its character.
func (m *tmux) keys(keys ...string) {
	m.t.Helper()
	m.do(append([]string{"send-keys"}, keys...)...)
}

// restored checks that the program ended as it should, and that its terminal is as before.
func (m *tmux) restored(status string) {
	m.t.Helper()
	m.until("ended with " + status)
	for variable, want := range map[string]string{"alternate_on": "0", "cursor_flag": "1", "mouse_any_flag": "0",
		"keypad_flag": "0"} {
		if got := m.is(variable); got != want {
			m.t.Errorf("afterwards %s is %q, not %q", variable, got, want)
		}
	}
	if s := m.screen(); strings.Contains(s, "tare top ") {
		m.t.Errorf("afterwards the screen has\n%s", s)
	}
}

// TestTopInATerminal uses the screen as a person does: tables, a filter, folding, another size, the end.
func TestTopInATerminal(t *testing.T) {
	needsRoot(t)
	t.Setenv("NO_COLOR", "")
	id := busyProgram(t)
	m := newTmux(t, "top", "--every", "500ms")
	s := m.until("what no rule names")
	if lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n"); len(lines) != 24 ||
		!strings.HasPrefix(lines[0], "tare top  ") || !strings.HasPrefix(lines[1], "[") ||
		!strings.Contains(s, "? unexplained") || m.is("alternate_on") != "1" {
		t.Errorf("the first screen is\n%s", s)
	}
	if !m.coloured() {
		t.Error("the bar has no colours")
	}
	m.keys("2")
	m.until("who pays")
	m.keys("/", "b", "u", "s", "y")
	m.until("filter: busy_")
	m.keys("Enter")
	m.until(strconv.FormatUint(uint64(id), 10) + "  + ")
	m.keys("Enter")
	m.until("100.0 %")
	m.keys("Escape") // with a key close behind, it would be Alt and that key
	m.until("q quit")
	m.keys("3")
	m.until("itself")
	m.do("resize-window", "-x", "130", "-y", "40")
	s = m.until("throttled")
	if lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n"); len(lines) != 40 {
		t.Errorf("of 40 lines it draws %d:\n%s", len(lines), s)
	}
	m.do("resize-window", "-x", "60", "-y", "10")
	m.until("tare top needs 80x16, not 60x10")
	m.do("resize-window", "-x", "80", "-y", "24")
	m.until("itself")
	m.keys("?")
	m.until("these keys")
	m.keys("q")
	m.restored("0")
}

// TestTopRestoresTheTerminal: by whichever signal it ends, and without colours too.
func TestTopRestoresTheTerminal(t *testing.T) {
	needsRoot(t)
	t.Setenv("NO_COLOR", "yes")
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		m := newTmux(t, "top", "--every", "1s")
		m.until("what no rule names")
		if m.coloured() {
			t.Errorf("in spite of NO_COLOR there are colours: %q", m.do("capture-pane", "-p", "-e"))
		}
		if err := syscall.Kill(numberIn(t, filepath.Join(m.dir, "pid")), s); err != nil {
			t.Fatal(err)
		}
		m.restored("0")
	}
}

// TestWeighEvery: windows follow each other without a gap, each with its sandboxes and by the rules, and SIGINT ends
// them with what was used until then.
func TestWeighEvery(t *testing.T) {
	needsRoot(t)
	p := command{args: []string{"weigh", "--every", "300ms", "--json", "--tare", "cgroup=/**"}}.start(t)
	for strings.Count(p.stdout.String(), "\n") < 3 {
		select {
		case <-p.done:
			t.Fatal(p.wait(t))
		case <-time.After(10 * time.Millisecond):
		}
	}
	p.signal(t, syscall.SIGINT)
	o := p.wait(t)
	if o.code != 0 {
		t.Fatal(o)
	}
	if err := schematest.Lines([]byte(o.stdout)); err != nil {
		t.Error(err)
	}
	end := time.Time{}
	for i, line := range strings.Split(strings.TrimSpace(o.stdout), "\n") {
		l := readLedger(t, line)
		if !l.CPU.Closes() || l.Sandboxes == nil || len(l.Components) == 0 || l.Tare == nil || l.Self.SandboxSeconds == nil {
			t.Errorf("ledger %d: the budget %+v, %d sandboxes, %d components", i, l.CPU, len(l.Sandboxes), len(l.Components))
		}
		if gap := l.Window.Start.Sub(end); i > 0 && gap.Abs() > 10*time.Millisecond {
			t.Errorf("ledger %d begins %v after the one before", i, gap)
		}
		end = l.Window.End
	}
	refused := tare(t, "top")
	if refused.code != 2 || !strings.Contains(refused.stderr, "--once") {
		t.Errorf("without a terminal: %s", refused)
	}
	if once := tare(t, "top", "--once", "--every", "300ms"); !strings.HasPrefix(once.stdout, "Weighed for ") {
		t.Errorf("once: %s", once)
	}
}
