package part

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/scale/host/cgroup"
)

// fakeTrial has a directory, and no control groups.
type fakeTrial struct {
	kind.Trial
	dir string
}

func (f fakeTrial) Self() string                         { return "/bin/false" }
func (f fakeTrial) Dir() string                          { return f.dir }
func (f fakeTrial) PartGroup(string) (kind.Group, error) { return nil, nil }
func (f fakeTrial) Cgroups() *cgroup.Layout              { return &cgroup.Layout{} }

// TestMounted: what a command has mounted below its directory, and did not unmount, is not removed with the directory.
func TestMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	p := &Part{Trial: fakeTrial{dir: t.TempDir()}, Name: "www"}
	place, err := p.Place()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	at, kept := filepath.Join(place.Dir, "root"), filepath.Join(elsewhere, "kept")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.Mkdir(at, 0o755),
		unix.Mount(elsewhere, at, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	err = p.Close()
	if _, lost := os.Stat(kept); lost != nil {
		t.Error(lost)
	}
	if err == nil || !strings.Contains(err.Error(), "files of www: something is mounted on "+at+": unmount it first") {
		t.Error(err)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(place.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", place.Dir, err)
	}
}
