package tracer

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// filesystem is a virtual filesystem of the kernel that is not mounted on every machine.
type filesystem struct {
	name  string
	magic int64    // f_type in statfs(2)
	dirs  []string // where programs look for it; it is mounted at the first
}

// Filesystems that tracers need.
var (
	tracefs = filesystem{"tracefs", unix.TRACEFS_MAGIC, []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}}
	debugfs = filesystem{"debugfs", unix.DEBUGFS_MAGIC, []string{"/sys/kernel/debug"}}
)

// mounted reports whether programs find the filesystem.
func (f filesystem) mounted() bool {
	return slices.ContainsFunc(f.dirs, func(dir string) bool {
		var s unix.Statfs_t
		return unix.Statfs(dir, &s) == nil && int64(s.Type) == f.magic
	})
}

// withFilesystems returns a command line that executes argv once all filesystems are mounted. Those that were not are
// mounted for it alone, in a new mount namespace.
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
