package exectrace

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/cgroup"
)

// groups looks up the paths of control groups, and caches them. It asks the kernel for the group with an id
// (open_by_handle_at), at a cost that does not depend on the number of groups on the machine.
type groups struct {
	hierarchy *cgroup.Hierarchy // nil if v2 is not mounted
	mount     *os.File
	seen      map[uint64]*group
}

// group is a control group as printed. A group that was removed before its first event was delivered is named by its
// id.
type group struct {
	text []byte
	json []byte // as a JSON string
}

// maxGroups is the maximum number of groups in the cache.
const maxGroups = 4096

// handleType is the file handle type of control groups: FILEID_KERNFS in include/linux/exportfs.h. The handle is the
// group's id.
const handleType = 0xfe

func newGroups(l *cgroup.Layout) *groups {
	g := &groups{seen: map[uint64]*group{}}
	if h, ok := l.V2(); ok {
		if mount, err := os.Open(h.Mount); err == nil { // otherwise only ids can be printed
			g.hierarchy, g.mount = h, mount
		}
	}
	return g
}

func (g *groups) close() error {
	if g.mount == nil {
		return nil
	}
	return g.mount.Close()
}

// of returns the group with an id. It allocates memory only for a new group.
func (g *groups) of(id uint64) *group {
	if one := g.seen[id]; one != nil {
		return one
	}
	if len(g.seen) >= maxGroups {
		clear(g.seen)
	}
	text := []byte(g.path(id))
	one := &group{text, appendJSONString(nil, text)}
	g.seen[id] = one
	return one
}

func (g *groups) path(id uint64) string {
	unknown := strconv.FormatUint(id, 10)
	if g.mount == nil {
		return unknown
	}
	var handle [8]byte
	binary.NativeEndian.PutUint64(handle[:], id)
	fd, err := unix.OpenByHandleAt(int(g.mount.Fd()), unix.NewFileHandle(handleType, handle[:]),
		unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return unknown // the group was removed
	}
	defer unix.Close(fd)
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	rel, below := strings.CutPrefix(path, strings.TrimSuffix(g.hierarchy.Mount, "/"))
	if err != nil || !below || strings.HasSuffix(rel, " (deleted)") {
		return unknown
	}
	return g.hierarchy.Identity(strings.TrimSuffix(rel, "/"))
}
