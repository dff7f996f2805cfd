package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/lib/files"
	"tare/internal/scale/host/mount"
)

// PinsSince returns the paths of programs, maps and links pinned at that time or later, in the BPF file systems
// visible to this process. The kernel does not expose who pinned them.
func PinsSince(since time.Time) (paths []string, err error) {
	mounts, err := mount.Read("")
	if err != nil {
		return nil, err
	}
	type part struct {
		dev  uint64
		root string
	}
	seen := map[part]bool{} // a file system may be mounted in several places
	var errs []error
	for _, m := range mounts {
		if m.Type != "bpf" || seen[part{m.Dev, m.Root}] {
			continue
		}
		seen[part{m.Dev, m.Root}] = true
		below, err := pinsBelow(m.Point, since, maxPins)
		paths = append(paths, below...)
		if err != nil {
			errs = append(errs, fmt.Errorf("looking for pins: %w", err))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths), errors.Join(errs...)
}

// maxPins is the maximum number of names to look at in one file system. If its root has the kernel's default mode,
// 1777, every user can create directories there.
const maxPins = 100_000

// gone are the errors of a directory that was removed, or replaced by a link or a file, in the meantime.
var gone = []error{fs.ErrNotExist, unix.ELOOP, unix.ENOTDIR}

// pinsBelow is PinsSince for the file system at a mount point.
func pinsBelow(point string, since time.Time, most int) (paths []string, err error) {
	tree := files.Tree{Root: point, Below: "/"}
	for dirs := []string{"."}; len(dirs) > 0; {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		names, err := tree.Names(dir, most+1)
		if err != nil && !slices.ContainsFunc(gone, func(was error) bool { return errors.Is(err, was) }) {
			return paths, err
		}
		if most -= len(names); most < 0 {
			return paths, fmt.Errorf("%s has too many files and directories", point)
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			switch info, err := tree.Stat(path); {
			case err != nil: // it was unpinned in the meantime, is a link, or has a longer path than the kernel accepts
			case info.IsDir():
				dirs = append(dirs, path)
			case info.Mode().IsRegular() && !info.ModTime().Before(since):
				paths = append(paths, filepath.Join(point, path))
			}
		}
	}
	return paths, nil
}
