package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestPinsSince: pins made since the given time are found once each, in subdirectories too; earlier ones are not.
func TestPinsSince(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a BPF file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // with its pins
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	again := t.TempDir()
	if err := unix.Mount(dir, again, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(again, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	pin := func(path string) string {
		t.Helper()
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), m.Pin(path)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	made := func(path string) time.Time {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	before, after := pin("before"), ""
	for i := 0; after == "" || !made(after).After(made(before)); i++ { // the clock of files is coarse
		time.Sleep(time.Millisecond)
		after = pin(fmt.Sprintf("below/%d", i))
	}
	found, err := PinsSince(made(after))
	if err != nil || !slices.Contains(found, after) || slices.Contains(found, before) ||
		slices.Contains(found, filepath.Join(again, strings.TrimPrefix(after, dir))) {
		t.Errorf("found %q, %v", found, err)
	}

	// In a directory that all may write to, any user can create directories nested beyond the longest path, or very many
	// of them.
	deep := filepath.Join(dir, "deep")
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(deep, unix.O_PATH|unix.O_DIRECTORY, 0)
	for range 100 {
		name := strings.Repeat("d", 100)
		if err == nil {
			err = unix.Mkdirat(fd, name, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		below, e := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		err = errors.Join(e, unix.Close(fd))
		fd = below
	}
	if err := errors.Join(err, unix.Close(fd), os.Symlink("/", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	if found, err := PinsSince(made(after)); err != nil || !slices.Contains(found, after) {
		t.Errorf("found %q, %v", found, err)
	}
	for i := range 100 {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pinsBelow(dir, made(after), 99); err == nil || !strings.Contains(err.Error(), "has too many") {
		t.Errorf("many directories: %v", err)
	}
}
