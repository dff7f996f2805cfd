package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// usageV1 is the file of a group's CPU time on v1. A write resets it to 0, together with everything else that the
// kernel counts of the group's CPU time (cpuusage_write in kernel/sched/cpuacct.c). If the counter has since grown past
// its earlier value, only the write itself reveals the reset.
const usageV1 = "cpuacct.usage"

// watch asks inotify to report the next write to an open file of a node. A watch pins the file's inode until it ends.
func (r *Reader) watch(n *node, fd int) {
	if !r.noting || n.watch != 0 {
		return
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd) // works for a path of any length
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

// noteResets counts writes to CPU counters since the previous call. The next reading of these groups starts to watch
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
			if mask&unix.IN_Q_OVERFLOW != 0 { // any group may have been reset
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

// Unnoted returns why resets of some groups' CPU time (CPU.Resets) may go unnoticed; nil if all are noticed.
func (r *Reader) Unnoted() error { return r.unnoted }
