package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is the error for anything but a regular file: a directory, a pipe, a device, or a file of a kernel
// file system, where reading may block or have side effects (/proc/kmsg).
var ErrNotRegular = errors.New("it is not a file")

// kernels are the magic numbers of file systems through which the kernel exposes its state.
var kernels = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.TRACEFS_MAGIC, unix.DEBUGFS_MAGIC, unix.SECURITYFS_MAGIC,
	unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC,
}

// Open opens a regular file for reading without blocking. It does not open pipes, devices and files of kernel file
// systems, because a pipe could block forever, and opening a device can have side effects. The error is then a
// *fs.PathError that wraps ErrNotRegular.
func Open(path string) (*os.File, error) {
	refused := func(err error) (*os.File, error) { return nil, &fs.PathError{Op: "open", Path: path, Err: err} }
	place, err := retryOpen(path, unix.O_PATH)
	if err != nil {
		return refused(err)
	}
	defer unix.Close(place)
	f, err := openPlace(place, path)
	if err != nil {
		return refused(err)
	}
	return f, nil
}

// openPlace opens the file of an O_PATH descriptor for reading, if it is a regular file.
func openPlace(place int, path string) (*os.File, error) {
	var st unix.Stat_t
	var of unix.Statfs_t
	if err := errors.Join(unix.Fstat(place, &st), unix.Fstatfs(place, &of)); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || slices.Contains(kernels, int64(of.Type)) {
		return nil, ErrNotRegular
	}
	fd, err := retryOpen(fmt.Sprintf("/proc/self/fd/%d", place), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err == unix.ENOENT {
		return nil, errors.New("/proc is not mounted")
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Read opens a regular file with Open and reads it. It fails if the file is larger than most, a number of bytes that
// must be at least 1 KiB.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f, most)
}

// readBounded reads a whole file. It fails if the file has more bytes than most.
func readBounded(f *os.File, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil || int64(len(data)) <= most {
		return data, err
	}
	if most < 1<<20 {
		return nil, fmt.Errorf("it has more than %d KiB", most>>10)
	}
	return nil, fmt.Errorf("it has more than %d MiB", most>>20)
}

func retryOpen(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
