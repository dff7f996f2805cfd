package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// openat opens a file for reading without allocating; name must end in a zero byte.
func openat(dir int, name []byte) (int, error) {
	for {
		fd, _, e := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&name[0])),
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
		n, err := unix.Pread(fd, *buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
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

// Walk visits every group below the directory mount, itself first, by its path below it: "" for itself, else "/a/b". It
// reads the names of directories only, where it can tell that there are any: a tenth of what walking all files costs.
func Walk(mount string, visit func(rel string)) error {
	fd, err := unix.Open(mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", mount, err)
	}
	defer unix.Close(fd)
	return walk(fd, "", make([]byte, 32<<10), func(rel string, _ uint64) { visit(rel) })
}

// walk visits the group at rel below dir (in the form of Hierarchy.Identity) and all its descendants, parents first.
// A group that vanishes meanwhile is passed over.
func walk(dir int, rel string, buf []byte, visit func(rel string, ino uint64)) error {
	name := "."
	if rel != "" {
		name = rel[1:]
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, 0); err != nil {
		if gone(err) {
			return nil
		}
		return forbidden(fmt.Errorf("looking at control group %s: %w", name, err))
	}
	visit(rel, st.Ino)
	// A directory has one link from its parent, one from itself and one from each directory in it (kernfs keeps to
	// that: kernfs_refresh_inode in fs/kernfs/inode.c; a file system that does not says 1). So most groups, the leaves,
	// need no listing.
	if st.Nlink == 2 {
		return nil
	}
	below, err := subdirs(dir, name, buf)
	if err != nil {
		if gone(err) {
			return nil
		}
		return forbidden(fmt.Errorf("listing control group %s: %w", name, err))
	}
	for _, d := range below {
		if err := walk(dir, rel+"/"+d, buf, visit); err != nil {
			return err
		}
	}
	return nil
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

// subdirs lists the directories in a directory. It reads the kernel's records itself since a v1 group holds some thirty
// files for each directory, and their names are not wanted.
func subdirs(dir int, name string, buf []byte) ([]string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			return names, nil
		}
		// struct linux_dirent64: inode u64, offset s64, length u16, type u8, name.
		const header = 19
		for b := buf[:n]; len(b) >= header; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < header || size > len(b) {
				break
			}
			kind, raw := b[18], b[header:size]
			b = b[size:]
			if kind != unix.DT_DIR && kind != unix.DT_UNKNOWN {
				continue
			}
			name := unix.ByteSliceToString(raw)
			if name == "." || name == ".." {
				continue
			}
			if kind == unix.DT_UNKNOWN {
				var st unix.Stat_t
				if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
					continue
				}
			}
			names = append(names, name)
		}
	}
}
