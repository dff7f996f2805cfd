package files

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("text"), 0o600), unix.Mkfifo(at("pipe"), 0o600),
		os.Symlink(at("file"), at("link")), os.Symlink("/dev/zero", at("device")), os.Symlink(at("nothing"), at("broken")),
		os.Symlink("/proc/kmsg", at("messages")), os.Symlink("/sys/kernel/mm/transparent_hugepage/enabled", at("setting")),
	); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, want := range map[string]error{
		"file": nil, "link": nil, "pipe": ErrNotRegular, "device": ErrNotRegular, ".": ErrNotRegular, "socket": ErrNotRegular,
		"messages": ErrNotRegular, "setting": ErrNotRegular, "broken": fs.ErrNotExist, "nothing": fs.ErrNotExist,
	} {
		f, err := Open(at(name))
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOpenOpensNothingElse: Open must not open files that are not regular, even briefly, because a watchdog device that
// is opened and then not fed restarts the machine. The test uses a pipe, and inotify to see whether it was opened.
func TestOpenOpensNothingElse(t *testing.T) {
	pipe, file := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "file")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	for path, opened := range map[string]bool{pipe: false, file: true} {
		if _, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err == nil {
			f.Close()
		}
		n, err := unix.Read(watch, make([]byte, 4096))
		if seen := n > 0; seen != opened || n <= 0 && err != unix.EAGAIN {
			t.Errorf("%s was opened: %v, %v", path, seen, err)
		}
	}
}
