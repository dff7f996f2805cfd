package controlplane

import (
	"io/fs"
	"syscall"
)

// inode tells a file from one that has taken its name.
func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
