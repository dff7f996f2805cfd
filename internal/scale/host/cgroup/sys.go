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
// monitor thread takes the processor away from a call that it sees twice, 20 us apart, and then keeps polling every 20
// us (retake in runtime/proc.go).

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
			return nil, unix.EFBIG // files of control groups are much smaller
		default:
			*buf = make([]byte, 2*len(*buf))
		}
	}
}

// gone reports whether err means that the group no longer exists: its directory is missing (ENOENT), or it was removed
// while a file in it was open (ENODEV, from kernfs).
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// Walk visits every group below the directory mount, starting with mount itself. visit gets the path below mount (""
// for mount itself, else "/a/b") and a descriptor of the directory (O_PATH), which is closed after the visit. Walk
// lists a directory only if link counts show that it may have subdirectories, which costs a tenth of walking all
// files. A group that cannot be read is passed to unread, and its descendants are not visited.
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

// maxRel bounds the path of a group: anyone who may create groups can nest them without limit, and the kernel resolves
// the whole path of each. The counters of an omitted group are included in those of the groups above it.
const maxRel = 16 << 10

// walker walks the groups of a hierarchy.
type walker struct {
	buf   []byte
	visit func(rel string, ino uint64)
	// called for a group that could not be read, and not for its descendants; may be nil
	unread func(rel string, err error)
	// groups that this process may not read are passed to unread too
	forbidden bool
	shallow   bool // only the first group and those directly below it
}

func newWalker(visit func(rel string, ino uint64)) *walker {
	return &walker{buf: make([]byte, 32<<10), visit: visit}
}

// walk visits the group at rel (as in Hierarchy.Identity) and all its descendants, parents first. dir is the directory
// of the group at base, which is rel or above it. A group that vanishes in the meantime is skipped. One that cannot be
// read is passed to unread, but missing permission is an error unless forbidden is set.
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

// below visits the descendants of the group at rel, which was visited already and has the given number of links. name
// is the path of that group as seen from dir.
func (w *walker) below(dir int, base, rel, name string, links uint64) error {
	// A directory has one link from its parent, one from itself and one from each subdirectory. kernfs follows this rule
	// (kernfs_refresh_inode in fs/kernfs/inode.c), and file systems that do not follow it report 1 link. So most groups,
	// the leaves, need not be listed.
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

// failed handles a group that could not be read.
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

// near is the length in bytes of the longest path that is passed to the kernel whole. For a longer path, a directory on
// the way is opened first, so that all paths passed to the kernel are shorter than PATH_MAX: a group's name has at most
// 255 bytes, and a file name follows it.
const near = unix.PathMax - 600

// openDir opens a directory by a path of any length, below dir.
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

// forbidden adds a hint to the error about a group that this process may not read, such as one created with a strict
// umask. Other errors are unchanged.
func forbidden(err error) error {
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	return fault.Wrap(err, fault.Machine, "", "run as root, or with CAP_DAC_READ_SEARCH",
		"the control groups of this machine may not all be read")
}

// subdir is a subdirectory with its attributes, or why these could not be read.
type subdir struct {
	name       string
	ino, links uint64
	err        error
}

// subdirs returns the subdirectories of a directory with their attributes, which it reads while the directory is open,
// because short paths are cheaper for the kernel. It parses the kernel's records itself, because a v1 group has some
// thirty files for each directory, whose names are not needed. It leaves out mount points: a hierarchy of v1 is often
// mounted on a group of v2 (/sys/fs/cgroup/systemd), and its inode numbers are those of other groups here.
func subdirs(dir int, name string, buf []byte) ([]subdir, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var own unix.Stat_t
	if err := unix.Fstat(fd, &own); err != nil {
		return nil, err
	}
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
		if err == nil && st.Dev != own.Dev {
			return
		}
		if kind == unix.DT_DIR || err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			all = append(all, subdir{name, st.Ino, uint64(st.Nlink), err})
		}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}
