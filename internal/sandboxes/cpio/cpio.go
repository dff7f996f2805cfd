// Package cpio writes archives in the format of the Linux kernel's initramfs.
package cpio

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
)

// Archive builds a cpio archive in the "newc" format, which the kernel unpacks as its first file system. The fields are
// those of Documentation/driver-api/early-userspace/buffer-format.rst. The kernel also accepts several concatenated
// archives, in which later ones add to earlier ones.
type Archive struct {
	buf  bytes.Buffer
	ino  int
	dirs map[string]bool
}

// File modes in the encoding of stat(2), which the archive uses.
const (
	modeDir  = 0o040000
	modeFile = 0o100000
)

// File adds a regular file and its parent directories.
func (a *Archive) File(name string, perm fs.FileMode, data []byte) {
	a.parents(name)
	a.entry(name, modeFile|uint32(perm.Perm()), data)
}

// Dir adds a directory and its parent directories, unless they are already in the archive.
func (a *Archive) Dir(name string, perm fs.FileMode) {
	if name = clean(name); name == "." || a.dirs[name] {
		return
	}
	a.parents(name)
	if a.dirs == nil {
		a.dirs = map[string]bool{}
	}
	a.dirs[name] = true
	a.entry(name, modeDir|uint32(perm.Perm()), nil)
}

// Entry holds the metadata of a file as in stat(2): its mode with the type, its owner, and the numbers of a device.
type Entry struct {
	Mode         uint32
	UID, GID     uint32
	Major, Minor uint32
}

// Add adds a file of any type. The data of a symbolic link is its target. The file's parent directories must already be
// in the archive.
func (a *Archive) Add(name string, e Entry, data []byte) { a.put(clean(name), e, data) }

func (a *Archive) parents(name string) { a.Dir(path.Dir(clean(name)), 0o755) }

func (a *Archive) entry(name string, mode uint32, data []byte) {
	a.put(clean(name), Entry{Mode: mode}, data)
}

func (a *Archive) put(name string, e Entry, data []byte) {
	a.ino++
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.ino, e.Mode, e.UID, e.GID, 1, 0, len(data), 0, 0, e.Major, e.Minor, len(name)+1, 0)
	a.buf.WriteString(name)
	a.buf.WriteByte(0)
	a.pad()
	a.buf.Write(data)
	a.pad()
}

// pad pads to the next multiple of four bytes, where the format starts every header and every content.
func (a *Archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

// Bytes ends the archive and returns it. It must be called only once, after everything has been added.
func (a *Archive) Bytes() []byte {
	a.entry("TRAILER!!!", 0, nil)
	return a.buf.Bytes()
}

// clean makes a name relative to the root of the archive.
func clean(name string) string {
	if name = path.Clean("/" + name); name == "/" {
		return "."
	}
	return name[1:]
}
