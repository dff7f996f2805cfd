package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/scale/ledger"
)

// evil is a name that would clear the screen, set the title, go back to the begin of the line, turn the direction of
// text, and begin another line of a log.
const evil = "a\x1b[2J\x1b]0;title\x07\r\u009b31m\u202eb\x9b2J"

// isSafe fails where text holds what could steer a terminal.
func isSafe(t *testing.T, name, text string, own ...string) {
	t.Helper()
	for _, control := range own {
		text = strings.ReplaceAll(text, control, "")
	}
	if at := strings.IndexFunc(text, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0xfffd
	}); at >= 0 {
		t.Errorf("%s: %q", name, text[max(at-20, 0):min(at+20, len(text))])
	}
}

func TestGuarded(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"plain\n\ttext, 5 µs\n", "plain\n\ttext, 5 µs\n"},
		{"\x1b[1mbold\x1b[0m and \x1b[2mfaint\x1b[0m", "\x1b[1mbold\x1b[0m and \x1b[2mfaint\x1b[0m"},
		{"\x1b[2Ja\x1b[31mb\rc\x07", `\x1b[2Ja\x1b[31mb\rc\a`},
		{"\x1b\x1b[1m[1m", "\\x1b\x1b[1m[1m"},
		{"\x1b[1\x1b[0mm", "\\x1b[1\x1b[0mm"},
		{"\u009b2J\u202e", `\u009b2J\u202e`},
	} {
		for pieces := range 2 {
			var b bytes.Buffer
			g := &guarded{w: &b, own: styles}
			if pieces == 0 {
				if n, err := g.Write([]byte(c.text)); n != len(c.text) || err != nil {
					t.Errorf("%q: %d, %v", c.text, n, err)
				}
			} else {
				for i := range len(c.text) {
					if n, err := g.Write([]byte(c.text[i : i+1])); n != 1 || err != nil {
						t.Errorf("%q: %d, %v", c.text, n, err)
					}
				}
			}
			if b.String() != c.want {
				t.Errorf("%q in %d pieces: %q, want %q", c.text, pieces*len(c.text), b.String(), c.want)
			}
			isSafe(t, c.text, b.String(), styles...)
		}
	}
}

// TestProgressIsSafe: what nodes and processes say, and what arms are called, does not steer the terminal.
func TestProgressIsSafe(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var b bytes.Buffer
		p := &progress{w: &guarded{w: &b}, raw: &b, terminal: terminal, block: -1}
		planned := record.PlannedTrial{Arm: evil, Factors: map[string]string{evil: evil}}
		for _, trial := range []record.Trial{
			{PlannedTrial: planned, Validity: record.Validity{Failed: evil},
				Warnings: []ledger.Warning{{Code: evil, Message: evil}}},
			{PlannedTrial: planned, Validity: record.Validity{Reasons: []record.Reason{{Gate: evil, Message: evil,
				Cause: evil}}}},
			{PlannedTrial: planned, Validity: record.Validity{Valid: true},
				Nodes:  []record.NodeTrial{{Name: evil, Failed: evil}},
				Ledger: &ledger.Ledger{Warnings: []ledger.Warning{{Code: record.LeftBehind, Message: evil}}}},
		} {
			p.say(engine.Progress{Last: &trial, Next: planned, Note: evil, Why: evil, Open: true})
		}
		p.interrupted()
		p.done()
		isSafe(t, "progress", b.String(), "\r\x1b[K")
		if strings.Contains(b.String(), "\r\x1b[K") != terminal {
			t.Errorf("on a terminal: %t, and it wrote %q", terminal, b.String())
		}
	}
}

// TestProgressOfFailure: the warnings of a trial that failed before its window stand below the failure.
func TestProgressOfFailure(t *testing.T) {
	var b bytes.Buffer
	p := &progress{w: &guarded{w: &b}, raw: &b, block: -1}
	p.say(engine.Progress{Last: &record.Trial{Validity: record.Validity{Failed: "it is not ready"},
		Warnings: []ledger.Warning{{Code: "no-line-matches", Message: "7 lines, and none matches"}}}})
	_, after, _ := strings.Cut(b.String(), "it is not ready")
	if !strings.Contains(after, "\n  warning: 7 lines, and none matches\n") {
		t.Errorf("it printed %q", b.String())
	}
}

func TestErrorsAreSafe(t *testing.T) {
	var b bytes.Buffer
	fault.Print(&b, errors.New(evil))
	isSafe(t, "an error", b.String())
}

// TestTerminalOutputIsSafe prints the summary of a hostile record on a terminal: JSON leaves most controls as they are.
func TestTerminalOutputIsSafe(t *testing.T) {
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs pseudoterminals: %v", err)
	}
	defer main.Close()
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(n)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	for name, c := range map[string]struct {
		file *os.File
		safe bool
	}{"a terminal": {tty, true}} {
		o := newStdout(c.file)
		if _, err := o.Write([]byte(evil + "\x1b[1mbold\x1b[0m\n")); err != nil {
			t.Fatal(err)
		}
		read := make([]byte, 4096)
		n, err := main.Read(read)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(read[:n]), "\r\n", "\n")
		isSafe(t, name, text, styles...)
		if !strings.Contains(text, "\x1b[1mbold") {
			t.Errorf("%s: without styles: %q", name, text)
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := newStdout(file).Write([]byte(evil)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != evil {
		t.Errorf("a file has %q, %v", got, err)
	}
}
