package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// TestWriteFile: a file that a user names is written completely or left as it was. A link at its path is replaced; a
// pipe is written to.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "report"), filepath.Join(dir, "victim")
	made := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	read := func(path, want string) {
		t.Helper()
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			t.Errorf("%s has %q, want %q: %v", filepath.Base(path), text, want, err)
		}
	}
	if err := errors.Join(os.WriteFile(victim, []byte("precious"), 0o600), os.Symlink(victim, path)); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(t.Context(), path, "the report", "", made("new")); err != nil {
		t.Fatal(err)
	}
	read(path, "new")
	read(victim, "precious")
	failed := errors.New("half way")
	err := writeFile(t.Context(), path, "the report", "",
		func(w io.Writer) error { return errors.Join(made("half")(w), failed) })
	if !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	read(path, "new")
	if err := writeFile(t.Context(), filepath.Join(dir, "none", "report"), "the report", "make room",
		made("new")); fault.CodeOf(err) != fault.Machine ||
		fault.HintOf(err) != "make room" {
		t.Errorf("no directory: %v", err)
	}

	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	came := make(chan string, 1)
	go func() {
		text, err := os.ReadFile(pipe)
		came <- string(text) + fault.HintOf(err)
	}()
	if err := writeFile(t.Context(), pipe, "the report", "", made("through")); err != nil {
		t.Fatal(err)
	}
	if got := <-came; got != "through" {
		t.Errorf("through the pipe came %q", got)
	}
	shm, err := os.MkdirTemp("/dev/shm", "tare-test-")
	if err != nil {
		t.Skip("needs /dev/shm: ", err)
	}
	defer os.RemoveAll(shm)
	link := filepath.Join(shm, "report") // a link below /dev that does not lead to an open file
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(t.Context(), link, "the report", "", made("new")); err != nil {
		t.Fatal(err)
	}
	read(link, "new")
	read(victim, "precious")
	if os.Geteuid() == 0 {
		if err := os.Chown(pipe, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		err = writeFile(t.Context(), pipe, "the report", "make room", made("secret"))
		if fault.CodeOf(err) != fault.Machine || !strings.Contains(fmt.Sprint(err), "it belongs to another user (65534)") {
			t.Errorf("somebody else's pipe: %v", err)
		}
		if text, err := io.ReadAll(reader); len(text) > 0 {
			t.Errorf("somebody else's pipe had %q, %v", text, err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := writeFile(t.Context(), fmt.Sprintf("/proc/self/fd/%d", w.Fd()), "the report", "", made("out")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if text, err := io.ReadAll(r); err != nil || string(text) != "out" {
		t.Errorf("standard output, as a file, had %q: %v", text, err)
	}
}
