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

	"tare/internal/lib/fault"
	"tare/internal/lib/terminal"
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
		isSafe(t, name, text, terminal.Styles...)
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
