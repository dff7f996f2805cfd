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
	testterminal "tare/test/terminal"
)

func TestErrorsAreSafe(t *testing.T) {
	var b bytes.Buffer
	fault.Print(&b, errors.New(testterminal.Evil))
	testterminal.IsSafe(t, "an error", b.String())
}

// TestTerminalOutputIsSafe: on a terminal, standard output escapes all control sequences but Tare's own. A file gets
// everything unchanged.
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
		if _, err := o.Write([]byte(testterminal.Evil + "\x1b[1mbold\x1b[0m\n")); err != nil {
			t.Fatal(err)
		}
		read := make([]byte, 4096)
		n, err := main.Read(read)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(read[:n]), "\r\n", "\n")
		testterminal.IsSafe(t, name, text, terminal.Styles...)
		if !strings.Contains(text, "\x1b[1mbold") {
			t.Errorf("%s: without styles: %q", name, text)
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := newStdout(file).Write([]byte(testterminal.Evil)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file.Name()); err != nil || string(got) != testterminal.Evil {
		t.Errorf("a file has %q, %v", got, err)
	}
}
