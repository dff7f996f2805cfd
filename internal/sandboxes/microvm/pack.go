package microvm

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/sandboxes/cpio"
)

// packMax is the maximum size of a root that is packed into the guest's memory, in bytes.
const packMax = 512 << 20

// pack adds the files of a directory to the archive as the container's root, and returns their size in bytes. Hard
// links become separate files, and sockets are left out. More than packMax bytes are an error.
func pack(a *cpio.Archive, root string) (size int64, err error) {
	a.Dir(guestShare+"/rootfs", 0o755)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		e := cpio.Entry{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
		var data []byte
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if size += st.Size; size > packMax {
				return fault.New(fault.Usage, root, virtiofsdHint, "more than %d MiB cannot be packed into a guest", packMax>>20)
			}
			data, err = readBounded(path, packMax)
		case unix.S_IFLNK:
			var target string
			target, err = os.Readlink(path)
			data = []byte(target)
		case unix.S_IFSOCK:
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil || rel == "." {
			return err
		}
		a.Add(guestShare+"/rootfs/"+rel, e, data)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("packing the container's root: %w", err)
	}
	return size, nil
}
