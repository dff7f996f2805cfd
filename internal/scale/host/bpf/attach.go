package bpf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/mount"
)

// Attachments without a link: programs attached by BPF_PROG_ATTACH to control groups and to maps of sockets, and to
// perf events by ioctl. Those to interfaces and network namespaces are in network.go. Each kind except perf events is
// searched only if the machine has a program of a matching type without a link.
//
// The kernel does not list attachments to sockets (SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_EBPF), routes (lwt_*), and
// hardware and software counters (by ioctl), nor programs in iptables' xt_bpf and in struct_ops maps without a link.
// Tare does not search LIRC devices or LSM hooks of cgroups.

// programsOn returns the ids of the programs attached to a target (a descriptor of a cgroup, network namespace or map,
// or the index of an interface) at one hook. EINVAL means that this kernel does not have the hook, or does not list it.
func programsOn(target int, attachType uint32) ([]uint32, error) {
	var ids [64]uint32 // the kernel allows 64 programs at one hook
	attr := struct {
		target, attachType, queryFlags, attachFlags uint32
		ids                                         unsafe.Pointer
		count, _                                    uint32
		attachFlagsOut                              uint64
	}{target: uint32(target), attachType: attachType, ids: unsafe.Pointer(&ids), count: uint32(len(ids))}
	if _, err := bpf(cmdProgQuery, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil && err != unix.ENOSPC {
		return nil, err
	}
	// After ENOSPC the buffer holds the first of the ids.
	return slices.Clone(ids[:min(int(attr.count), len(ids))]), nil
}

// noHook reports whether err means that a target has no programs at a hook because the target is gone, or the hook
// does not exist here.
func noHook(err error) bool {
	return slices.ContainsFunc([]error{unix.EINVAL, unix.EOPNOTSUPP, unix.ENXIO, unix.ENOENT, unix.ENODEV},
		func(is error) bool { return errors.Is(err, is) })
}

// cgroupAttachments finds programs that are attached to control groups without a link, which is how systemd attaches
// its programs. It queries every group of the v2 hierarchy at the hooks for programs of these types, at 1 us per query.
// The error is that of the first group that could not be queried.
func (v *Inventory) cgroupAttachments(types map[uint32]bool, found func(program uint32, target string)) error {
	var hooks []uint32
	for typ := range types {
		hooks = append(hooks, cgroupAttachTypes[typ]...)
	}
	root := v.mounts.v2
	if len(hooks) == 0 || root == "" {
		return nil
	}
	var errs []error
	unread := func(rel string, err error) { errs = append(errs, fmt.Errorf("control group %.200s: %w", rel, err)) }
	err := cgroup.Walk(root, func(rel string, dir int) {
		for _, hook := range hooks {
			attached, err := programsOn(dir, hook)
			if err != nil && !noHook(err) {
				unread(rel, err)
				return
			}
			for _, id := range attached {
				found(id, "cgroup:"+relative(root, root+rel)+" "+typeName(attachTypes, hook))
			}
		}
	}, unread)
	if err := errors.Join(err, firstOf(errs)); err != nil {
		return fmt.Errorf("looking for programs in control groups: %w", err)
	}
	return nil
}

// firstOf returns the first error and the number of others, for errors about groups or interfaces, of which a machine
// may have thousands.
func firstOf(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (and %d more errors like this)", errs[0], len(errs)-1)
}

// sockmapAttachments finds parsers and verdicts attached to maps of sockets without a link.
func sockmapAttachments(maps []Map, found func(program uint32, target string)) error {
	var errs []error
	for _, m := range maps {
		if m.typ != mapSockmap && m.typ != mapSockhash {
			continue
		}
		err := withObject(cmdMapGetFDByID, m.ID, openReadOnly, func(fd int) error {
			for _, hook := range sockmapAttachTypes {
				attached, err := programsOn(fd, hook)
				if err == unix.EINVAL {
					return errOldSockmap
				}
				// EBUSY: the map has the other of the two mutually exclusive kinds of sk_skb verdict.
				if err != nil && err != unix.EBUSY && !noHook(err) {
					return fmt.Errorf("looking for programs on map %d: %w", m.ID, err)
				}
				for _, id := range attached {
					found(id, fmt.Sprintf("sockmap:map %d %s", m.ID, typeName(attachTypes, hook)))
				}
			}
			return nil
		})
		if errors.Is(err, errOldSockmap) {
			return err
		}
		errs = append(errs, err)
	}
	return firstOf(errs)
}

var errOldSockmap = errors.New("this kernel does not list the programs on maps of sockets (Linux 5.18 does)")

// perfAttachment returns the program attached to a perf event of a process, and the event's target. ok is false if
// there is none; the kernel does not report programs on hardware and software counters.
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

// cgroupMounts holds where control groups are mounted; empty if they are not.
type cgroupMounts struct {
	v2     string // the hierarchy whose groups cgroup links attach to
	memory string // the hierarchy of the memory controller: that of v1 if mounted, else v2
}

func findCgroupMounts(proc string) (cgroupMounts, error) {
	all, err := mount.Read(proc)
	if err != nil {
		return cgroupMounts{}, err
	}
	return pickCgroupMounts(all), nil
}

// pickCgroupMounts returns the first mount of each hierarchy.
func pickCgroupMounts(all []mount.Mount) (m cgroupMounts) {
	for i := range all {
		switch a := &all[i]; {
		case a.Type == "cgroup2" && m.v2 == "":
			m.v2 = a.Point
		case a.Type == "cgroup" && m.memory == "" && slices.Contains(a.Options, "memory"):
			m.memory = a.Point
		}
	}
	m.memory = cmp.Or(m.memory, m.v2)
	return m
}

// relative returns a group's path within the hierarchy at a mount point, such as "/" or "/a/b". It returns "" if the
// path is not below the mount point.
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

// cgroupNames resolves ids of control groups to paths. The id of a group is that of its kernfs node, which is also the
// file handle of its directory (fs/kernfs/mount.c), so one system call finds the directory without a walk.
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

// path returns the path of a group; empty if it is gone, or not visible to this process.
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
