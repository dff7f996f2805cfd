package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

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
		errs = append(errs, filepath.WalkDir(m.Point, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it was unpinned in the meantime
			}
			if err != nil {
				return fmt.Errorf("looking for pins: %w", err)
			}
			if !d.Type().IsRegular() {
				return nil
			}
			if info, err := d.Info(); err == nil && !info.ModTime().Before(since) {
				paths = append(paths, path)
			}
			return nil
		}))
	}
	slices.Sort(paths)
	return slices.Compact(paths), errors.Join(errs...)
}
