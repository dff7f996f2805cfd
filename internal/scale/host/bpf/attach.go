package bpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/mount"
)

// Attachments that are no links: programs attached to control groups by BPF_PROG_ATTACH, to perf events by ioctl, to
// interfaces by rtnetlink. Each is looked for only while the machine has a program that needs it: of that type, and on
// no link.

// programsOn lists what is attached to a target (a cgroup's descriptor, an interface's index) at one hook.
func programsOn(target int, attachType uint32, ids []uint32) ([]uint32, error) {
	attr := struct {
		target, attachType, queryFlags, attachFlags uint32
		ids                                         unsafe.Pointer
		count, _                                    uint32
		attachFlagsOut                              uint64
	}{target: uint32(target), attachType: attachType, ids: unsafe.Pointer(&ids[0]), count: uint32(len(ids))}
	_, err := bpf(cmdProgQuery, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err == unix.ENOSPC { // the first ones are there
		return ids, nil
	}
	if err != nil {
		return nil, err
	}
	return ids[:min(int(attr.count), len(ids))], nil
}

// cgroupAttachments finds programs that were attached to control groups without a link (systemd does so). It asks every
// group of the v2 hierarchy, at the hooks that programs of these types can have: 1 us a question.
func (v *Inventory) cgroupAttachments(types map[uint32]bool, found func(program uint32, target string)) error {
	var hooks []uint32
	for typ := range types {
		hooks = append(hooks, cgroupAttachTypes[typ]...)
	}
	root := v.mounts.v2
	if len(hooks) == 0 || root == "" {
		return nil
	}
	ids := make([]uint32, 64) // the kernel allows 64 programs at one hook
	err := cgroup.Walk(root, func(rel string) {
		fd, err := unix.Open(root+rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return // the group went away
		}
		defer unix.Close(fd)
		for _, hook := range hooks {
			attached, err := programsOn(fd, hook, ids)
			if err != nil {
				continue // a hook that this kernel lacks, or a group that went away
			}
			for _, id := range attached {
				found(id, "cgroup:"+relative(root, root+rel)+" "+typeName(attachTypes, hook))
			}
		}
	})
	if err != nil {
		return fmt.Errorf("looking for programs in control groups: %w", err)
	}
	return nil
}

// perfAttachment asks what hangs on a perf event of some process. Of programs on hardware and software counters the
// kernel does not tell.
func (v *Inventory) perfAttachment(pid int, fd uint32) (program uint32, target string, ok bool) {
	if v.name == nil {
		v.name = make([]byte, nameSize)
	}
	clear(v.name)
	attr := struct {
		pid, fd, flags, bufLen uint32
		buf                    unsafe.Pointer
		prog, typ              uint32
		offset, addr           uint64
	}{pid: uint32(pid), fd: fd, bufLen: nameSize, buf: unsafe.Pointer(&v.name[0])}
	if _, err := bpf(cmdTaskFDQuery, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil && err != unix.ENOSPC {
		return 0, "", false
	}
	// enum bpf_task_fd_type
	families := []string{"raw_tracepoint", "tracepoint", "kprobe", "kretprobe", "uprobe", "uretprobe"}
	target = typeName(families, attr.typ)
	if name := cString(v.name); name != "" {
		target += ":" + name
	}
	return attr.prog, target, attr.prog != 0
}

// cgroupMounts are where control groups are mounted; empty where they are not.
type cgroupMounts struct {
	v2     string // targets of cgroup links
	memory string // the hierarchy of the memory controller: v1's own, else v2
}

func findCgroupMounts(proc string) (cgroupMounts, error) {
	all, err := mount.Read(proc)
	if err != nil {
		return cgroupMounts{}, err
	}
	return pickCgroupMounts(all), nil
}

// pickCgroupMounts takes the first mount of each.
func pickCgroupMounts(all []mount.Mount) (m cgroupMounts) {
	for i := range all {
		switch a := &all[i]; {
		case a.Type == "cgroup2" && m.v2 == "":
			m.v2 = a.Point
		case a.Type == "cgroup" && m.memory == "" && slices.Contains(a.Options, "memory"):
			m.memory = a.Point
		}
	}
	if m.memory == "" {
		m.memory = m.v2
	}
	return m
}

// relative is a group's path within its hierarchy: "/" or "/a/b".
func relative(mount, path string) string {
	rest, ok := strings.CutPrefix(path, mount)
	if !ok || rest != "" && rest[0] != '/' && mount != "/" {
		return ""
	}
	if rest == "" {
		return "/"
	}
	return "/" + strings.TrimPrefix(rest, "/")
}

// cgroupNames turns ids of control groups into paths. An id is the kernfs node's, which is also the handle of its
// directory (fs/kernfs/mount.c), so that one system call finds it: no walk.
type cgroupNames struct {
	mount string
	fd    int
	names map[uint64]string
}

func openCgroupNames(mount string) *cgroupNames {
	n := &cgroupNames{mount: mount, fd: -1, names: map[uint64]string{}}
	if mount != "" {
		if fd, err := unix.Open(mount, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			n.fd = fd
		}
	}
	return n
}

func (n *cgroupNames) close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
	}
}

const fileIDKernfs = 0xfe // FILEID_KERNFS, include/linux/exportfs.h

// path is empty for a group that is gone, or outside of what this process can see.
func (n *cgroupNames) path(id uint64) string {
	if name, ok := n.names[id]; ok || n.fd < 0 {
		return name
	}
	name := ""
	handle := unix.NewFileHandle(fileIDKernfs, binary.NativeEndian.AppendUint64(nil, id))
	if fd, err := unix.OpenByHandleAt(n.fd, handle, unix.O_PATH|unix.O_CLOEXEC); err == nil {
		if at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
			name = relative(n.mount, at)
		}
		unix.Close(fd)
	}
	n.names[id] = name
	return name
}
