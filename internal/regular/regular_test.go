package regular

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
		"broken": fs.ErrNotExist, "nothing": fs.ErrNotExist,
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
