package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// usageV1 is the file of a group's CPU time on v1. A write sets it back to 0, and with it all that the kernel counts of
// the group's CPU time (cpuusage_write in kernel/sched/cpuacct.c): where it has grown past what it was since, only the
// write itself tells.
const usageV1 = "cpuacct.usage"

// watch has it noted once that somebody writes to a file of a node, which is open. A watch keeps the file's inode until
// it ends.
func (r *Reader) watch(n *node, fd int) {
	if !r.noting || n.watch != 0 {
		return
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd) // of any length
	w, err := unix.InotifyAddWatch(r.inotify, path, unix.IN_MODIFY|unix.IN_ONESHOT)
	if err != nil {
		r.unnoted = err
		return
	}
	n.watch = w
	r.watched[w] = n
}

func (r *Reader) unwatch(n *node) {
	if n.watch == 0 {
		return
	}
	delete(r.watched, n.watch)
	_, _ = unix.InotifyRmWatch(r.inotify, uint32(n.watch)) // it may have ended with its file
	n.watch = 0
}

// noteResets counts the groups whose CPU counters were written since it was called before. The next reading watches
// them again, before it reads.
func (r *Reader) noteResets() {
	for r.noting {
		n, err := unix.Read(r.inotify, r.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return // there are no more
		}
		// struct inotify_event: wd, mask, cookie, len, name (include/uapi/linux/inotify.h)
		for b := r.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			w, mask := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:])
			b = b[min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])), len(b)):]
			if mask&unix.IN_Q_OVERFLOW != 0 { // it may be any
				for _, g := range r.groups {
					g.resets++
				}
			}
			if node := r.watched[w]; node != nil && mask&unix.IN_MODIFY != 0 {
				node.group.resets++
				node.watch = 0
				delete(r.watched, w)
			}
		}
	}
}

// Unnoted is why it may not be seen that somebody sets the CPU time of a group back (CPU.Resets); nil where it is.
func (r *Reader) Unnoted() error { return r.unnoted }
