package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
)

// The calls that a reading makes for each group take microseconds and do not block, so they bypass Go's scheduler: its
// monitor thread takes the processor away from a call that it sees twice, 20 us apart, and goes on looking every 20 us
// (retake in runtime/proc.go).

// openat opens a file for reading without allocating; name must end in a zero byte.
func openat(dir int, name []byte) (int, error) {
	for {
		fd, _, e := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&name[0])),
			unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
		switch e {
		case 0:
			return int(fd), nil
		case unix.EINTR:
			continue
		}
		return -1, e
	}
}

// pread reads the whole file from its beginning into *buf, which grows as needed.
func pread(fd int, buf *[]byte) ([]byte, error) {
	for {
		r, _, e := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(*buf))),
			uintptr(len(*buf)), 0, 0, 0)
		switch n := int(r); {
		case e == unix.EINTR:
		case e != 0:
			return nil, e
		case n < len(*buf):
			return (*buf)[:n], nil
		case n >= 1<<20:
			return nil, unix.EFBIG // no file of control groups is near this size
		default:
			*buf = make([]byte, 2*len(*buf))
		}
	}
}

// gone says whether err means that the group does not exist any more: its directory is not there (ENOENT), or it was
// removed while a file in it was open (ENODEV, from kernfs).
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// Walk visits every group below the directory mount, itself first, by its path below it ("" for itself, else "/a/b")
// and a descriptor of its directory (O_PATH), which is closed after the visit. It reads the names of directories only,
// where it can tell that there are any: a tenth of what walking all files costs. A group that cannot be looked at goes
// to unread, and those below it are not visited.
func Walk(mount string, visit func(rel string, dir int), unread func(rel string, err error)) error {
	fd, err := unix.Open(mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", mount, err)
	}
	defer unix.Close(fd)
	w := newWalker(func(rel string, _ uint64) {
		dir, err := openDir(fd, cmp.Or(strings.TrimPrefix(rel, "/"), "."))
		switch {
		case err == nil:
			visit(rel, dir)
			unix.Close(dir)
		case !gone(err):
			unread(rel, err)
		}
	})
	w.unread, w.forbidden = unread, true
	return w.walk(fd, "", "")
}

// maxRel bounds the path of a group: anyone who may make groups can nest them without end, and each costs its reader
// the whole path. What is in those below it is counted in the groups above.
const maxRel = 16 << 10

// walker walks the groups of a hierarchy.
type walker struct {
	buf    []byte
	visit  func(rel string, ino uint64)
	unread func(rel string, err error) // of a group that could not be looked at, with all below it; may be nil
	// a group that may not be looked at goes to unread too
	forbidden bool
	shallow   bool // only the first group and those directly below it
}

func newWalker(visit func(rel string, ino uint64)) *walker {
	return &walker{buf: make([]byte, 32<<10), visit: visit}
}

// walk visits the group at rel (in the form of Hierarchy.Identity) and all its descendants, parents first. dir is the
// directory of the group at base, which is rel or above it. A group that vanishes meanwhile is passed over; one that
// cannot be looked at goes to unread, save for want of rights, which is an error unless forbidden is set.
func (w *walker) walk(dir int, base, rel string) error {
	name := cmp.Or(strings.TrimPrefix(rel[len(base):], "/"), ".")
	if len(rel) > maxRel {
		return w.failed(name, rel, errLong)
	}
	if len(name) > near {
		fd, err := openDir(dir, name)
		if err != nil {
			return w.failed(name, rel, err)
		}
		defer unix.Close(fd)
		dir, base, name = fd, rel, "."
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, 0); err != nil {
		return w.failed(name, rel, err)
	}
	w.visit(rel, st.Ino)
	return w.below(dir, base, rel, name, uint64(st.Nlink))
}

// below visits the groups in one that was visited, which has that number of links, and all their descendants. name is
// that of the group at rel as seen from dir.
func (w *walker) below(dir int, base, rel, name string, links uint64) error {
	// A directory has one link from its parent, one from itself and one from each directory in it (kernfs keeps to
	// that: kernfs_refresh_inode in fs/kernfs/inode.c; a file system that does not says 1). So most groups, the leaves,
	// need no listing.
	if links == 2 || w.shallow && name != "." {
		return nil
	}
	below, err := subdirs(dir, name, w.buf)
	if err != nil {
		return w.failed(name, rel, err)
	}
	for i := range below {
		d := &below[i]
		of := rel + "/" + d.name
		switch {
		case len(of) > maxRel || len(of)-len(base) > near:
			err = w.walk(dir, base, of)
		case d.err != nil:
			err = w.failed(of, of, d.err)
		default:
			w.visit(of, d.ino)
			err = w.below(dir, base, of, of[len(base)+1:], d.links)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errLong = fmt.Errorf("its path is longer than %d bytes", maxRel)

// failed says what becomes of a group that could not be looked at.
func (w *walker) failed(name, rel string, err error) error {
	switch {
	case gone(err):
	case errors.Is(err, unix.EACCES) && !w.forbidden:
		return forbidden(fmt.Errorf("looking at control group %s: %w", name, err))
	case w.unread != nil:
		w.unread(rel, err)
	}
	return nil
}

// near is how long a path may get before a directory on it is opened, so that all paths that the kernel sees are
// shorter than PATH_MAX: the longest name has 255 bytes, and a file's follows it.
const near = unix.PathMax - 600

// openDir opens a directory by a path of any length.
func openDir(dir int, name string) (int, error) {
	const how = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	own := -1 // the directory reached so far, if it was opened here
	for len(name) > near {
		cut := strings.LastIndexByte(name[:near], '/')
		if cut <= 0 {
			break // a name that no directory can have
		}
		fd, err := unix.Openat(dir, name[:cut], how, 0)
		if own >= 0 {
			unix.Close(own)
		}
		if err != nil {
			return -1, err
		}
		dir, own, name = fd, fd, name[cut+1:]
	}
	fd, err := unix.Openat(dir, name, how, 0)
	if own >= 0 {
		unix.Close(own)
	}
	return fd, err
}

// forbidden gives the error of a group that may not be read its hint: whoever made the group did so with a strict
// umask. Other errors stay as they are.
func forbidden(err error) error {
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	return fault.Wrap(err, fault.Machine, "", "run as root, or with CAP_DAC_READ_SEARCH",
		"the control groups of this machine may not all be read")
}

// subdir is a directory in another, and what looking at it said.
type subdir struct {
	name       string
	ino, links uint64
	err        error
}

// subdirs lists the directories in a directory, and looks at each, while the directory is open: the shorter the path,
// the less the kernel has to do. It reads the kernel's records itself since a v1 group holds some thirty files for each
// directory, and their names are not wanted.
func subdirs(dir int, name string, buf []byte) ([]subdir, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var all []subdir
	err = proc.EachDirent(fd, buf, func(_ uint64, kind byte, raw []byte) {
		if kind != unix.DT_DIR && kind != unix.DT_UNKNOWN {
			return
		}
		name := unix.ByteSliceToString(raw)
		if name == "." || name == ".." {
			return
		}
		var st unix.Stat_t
		err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if kind == unix.DT_DIR || err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			all = append(all, subdir{name, st.Ino, uint64(st.Nlink), err})
		}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
