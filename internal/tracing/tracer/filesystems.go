package tracer

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// filesystem is a virtual file system of the kernel that is not mounted on every machine.
type filesystem struct {
	name  string
	magic int64    // f_type in statfs(2)
	dirs  []string // where programs look for it; if missing, it is mounted at the first
}

// Filesystems that tracers need.
var (
	tracefs = filesystem{"tracefs", unix.TRACEFS_MAGIC, []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}}
	debugfs = filesystem{"debugfs", unix.DEBUGFS_MAGIC, []string{"/sys/kernel/debug"}}
)

// mounted reports whether programs can find the file system.
func (f filesystem) mounted() bool {
	return slices.ContainsFunc(f.dirs, func(dir string) bool {
		var s unix.Statfs_t
		return unix.Statfs(dir, &s) == nil && int64(s.Type) == f.magic
	})
}

// withFilesystems returns a command line that executes argv with all file systems mounted. Those that are missing are
// mounted only for argv, in a new mount namespace.
func withFilesystems(needs []filesystem, argv []string) []string {
	var mounts []string
	for _, f := range needs {
		if !f.mounted() {
			mounts = append(mounts, "mount -t "+f.name+" none "+f.dirs[0])
		}
	}
	if mounts == nil {
		return argv
	}
	script := strings.Join(mounts, " && ") + ` && exec "$@"`
	return append([]string{"unshare", "--mount", "sh", "-c", script, "sh"}, argv...)
}
