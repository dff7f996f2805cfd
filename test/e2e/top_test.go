package e2e

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/test/schematest"
	"tare/test/terminal"
)

// TestTopInATerminal uses the screen as a person does: tables, a filter, folding, another size, the end.
func TestTopInATerminal(t *testing.T) {
	needsRoot(t)
	t.Setenv("NO_COLOR", "")
	id := busyProgram(t)
	m := terminal.New(t, bin, "top", "--every", "500ms")
	s := m.Until("what no rule names")
	if lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n"); len(lines) != 24 ||
		!strings.HasPrefix(lines[0], "tare top  ") || !strings.HasPrefix(lines[1], "[") ||
		!strings.Contains(s, "? unexplained") || m.Is("alternate_on") != "1" {
		t.Errorf("the first screen is\n%s", s)
	}
	if !m.Coloured() {
		t.Error("the bar has no colours")
	}
	m.Keys("2")
	m.Until("who pays")
	m.Keys("/", "b", "u", "s", "y")
	m.Until("filter: busy_")
	m.Keys("Enter")
	m.Until(strconv.FormatUint(uint64(id), 10) + "  + ")
	m.Keys("Enter")
	m.Until("100.0 %")
	m.Keys("Escape") // with a key close behind, it would be Alt and that key
	m.Until("q quit")
	m.Keys("3")
	m.Until("itself")
	m.Do("resize-window", "-x", "130", "-y", "40")
	s = m.Until("throttled")
	if lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n"); len(lines) != 40 {
		t.Errorf("of 40 lines it draws %d:\n%s", len(lines), s)
	}
	m.Do("resize-window", "-x", "60", "-y", "10")
	m.Until("tare top needs 80x16, not 60x10")
	m.Do("resize-window", "-x", "80", "-y", "24")
	m.Until("itself")
	m.Keys("?")
	m.Until("these keys")
	m.Keys("q")
	m.Restored("0")
}

// TestTopRestoresTheTerminal: whichever signal ends tare top, it leaves the terminal as it was. With NO_COLOR it uses
// no colours.
func TestTopRestoresTheTerminal(t *testing.T) {
	needsRoot(t)
	t.Setenv("NO_COLOR", "yes")
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		m := terminal.New(t, bin, "top", "--every", "1s")
		m.Until("what no rule names")
		if m.Coloured() {
			t.Errorf("in spite of NO_COLOR there are colours: %q", m.Do("capture-pane", "-p", "-e"))
		}
		m.Signal(s)
		m.Restored("0")
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
