package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/mount"
)

// Attachments of packet programs without a link: by rtnetlink (XDP, tc) or BPF_PROG_ATTACH (tcx, netkit, flow
// dissector). Each belongs to a network namespace, and the kernel lists only those in the namespace of the calling
// thread.

// netAttachment is an attachment of a packet program without a link.
type netAttachment struct {
	program uint32
	kind    string // "xdp", "tc", "tcx", "netkit"
	ifindex uint32
	device  string // name of the interface, or "action N" for a tc action
	hook    string // may be empty
}

// target describes the attachment at an interface with the given name.
func (a *netAttachment) target(device string) string {
	return strings.TrimSuffix(a.kind+":"+device+" "+a.hook, " ")
}

// unnamed describes an interface whose name is unknown, because a link does not say which namespace its index belongs
// to.
func unnamed(ifindex uint32) string {
	return fmt.Sprintf("index %d of another network namespace", ifindex)
}

// onNetwork reports whether programs of some of these types can have the attachments in this file.
func onNetwork(types map[uint32]bool) bool {
	return types[progTypeXDP] || types[progTypeSchedCLS] || types[progTypeSchedACT] || types[progTypeFlowDissector]
}

// netAttachments finds attachments of programs of these types at the interfaces of the calling thread's network
// namespace. It reports those of XDP in any case, because ifaces already contains them. It goes on after an error, and
// returns the first error and the number of others.
func netAttachments(ifaces map[uint32]device, types map[uint32]bool, found func(netAttachment)) error {
	var errs []error
	for index, d := range ifaces {
		for _, id := range d.xdp {
			found(netAttachment{program: id, kind: "xdp", ifindex: index, device: d.name})
		}
		if !types[progTypeSchedCLS] {
			continue
		}
		for link, hooks := range deviceAttachTypes {
			for _, hook := range hooks {
				ids, err := programsOn(int(index), hook)
				if err != nil && !noHook(err) {
					errs = append(errs, fmt.Errorf("looking for programs on interface %s: %w", d.name, err))
				}
				for _, id := range ids {
					found(netAttachment{id, linkTypes[link], index, d.name, attachTypes[hook]})
				}
			}
		}
	}
	if types[progTypeSchedCLS] {
		errs = append(errs, tcAttachments(func(ifindex, id uint32, place string) {
			found(netAttachment{id, "tc", ifindex, ifaces[ifindex].name, place})
		}))
	}
	if types[progTypeSchedACT] {
		list, err := actions()
		errs = append(errs, err)
		for _, a := range list {
			found(netAttachment{program: a.program, kind: "tc", device: fmt.Sprintf("action %d", a.index)})
		}
	}
	return firstOf(errs)
}

// flowDissectors finds the flow dissector of a network namespace.
func flowDissectors(namespace int, inode uint64, found func(program uint32, target string)) error {
	ids, err := programsOn(namespace, attachFlowDissector)
	for _, id := range ids {
		found(id, fmt.Sprintf("netns:%d %s", inode, attachTypes[attachFlowDissector]))
	}
	if err != nil && !noHook(err) {
		return fmt.Errorf("looking for flow dissectors: %w", err)
	}
	return nil
}

const threadNamespace = "/proc/thread-self/ns/net"

// ownFlowDissectors finds the flow dissector of the calling thread's network namespace.
func ownFlowDissectors(found func(program uint32, target string)) error {
	fd, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", threadNamespace, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", threadNamespace, err)
	}
	return flowDissectors(fd, st.Ino, found)
}

// Limits for visiting other network namespaces. A Kubernetes node has one for each of its pods, by default at most 110,
// and a visit takes 0.1 ms.
const (
	maxNamespaces     = 512
	maxNamespacesTime = 200 * time.Millisecond
)

// namespace is a network namespace, and a file to open it with.
type namespace struct {
	path  string
	inode uint64
}

// attachmentsElsewhere finds attachments of programs of these types in network namespaces other than the calling
// thread's: those of the processes in this PID namespace, and those mounted in this mount namespace.
func (v *Inventory) attachmentsElsewhere(types map[uint32]bool, program map[uint32]*Program) error {
	list, failed := v.namespaces()
	if len(list) == 0 {
		return failed
	}
	note := func(id uint32, vague, target string) {
		if p := program[id]; p != nil {
			complete(p, vague, target)
		}
	}
	return errors.Join(failed, eachNamespace(list, maxNamespacesTime, func(n namespace, fd int) error {
		ifaces, err := devices()
		return errors.Join(err, netAttachments(ifaces, types, func(a netAttachment) {
			note(a.program, a.target(unnamed(a.ifindex)), fmt.Sprintf("%s (netns %d)", a.target(a.device), n.inode))
		}), flowDissectors(fd, n.inode, func(id uint32, target string) { note(id, "", target) }))
	}))
}

// eachNamespace calls visit for each network namespace, with a descriptor of the namespace, on a thread that has
// entered it. It visits at most maxNamespaces, and starts no visit after the duration most has passed. It returns the
// first error of a visit, and an error about the namespaces that were left out.
func eachNamespace(list []namespace, most time.Duration, visit func(n namespace, fd int) error) error {
	var errs []error
	var left error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		// A thread that stayed in another namespace would keep that namespace alive. If it were the main thread, /proc would
		// show that namespace as Tare's.
		back, err := unix.Open(threadNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			left = fmt.Errorf("opening %s: %w", threadNamespace, err)
			return
		}
		defer unix.Close(back)
		defer func() {
			if err := unix.Setns(back, unix.CLONE_NEWNET); err != nil {
				left = errors.Join(left, fmt.Errorf("returning to this process's network namespace: %w", err))
				return // the thread ends with this goroutine
			}
			runtime.UnlockOSThread()
		}()
		until := time.Now().Add(most)
		for i, n := range list {
			if i == maxNamespaces || time.Now().After(until) {
				left = fmt.Errorf("%d of %d other network namespaces were not looked at", len(list)-i, len(list))
				return
			}
			if err := inNamespace(n, func(fd int) error { return visit(n, fd) }); err != nil {
				errs = append(errs, fmt.Errorf("in network namespace %d: %w", n.inode, err))
			}
		}
	}()
	<-ended
	return errors.Join(firstOf(errs), left)
}

// inNamespace moves the calling thread into a network namespace, and calls visit there. It skips a namespace that is
// gone, or whose path now refers to another.
func inNamespace(n namespace, visit func(fd int) error) error {
	fd, err := unix.Open(n.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != n.inode {
		return err
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering it: %w", err)
	}
	return visit(fd)
}

// namespaces returns the network namespaces other than the calling thread's. The error says which may be missing.
func (v *Inventory) namespaces() ([]namespace, error) {
	inode := func(path string) (uint64, error) {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		return st.Ino, err
	}
	here, err := inode(threadNamespace)
	if err != nil {
		return nil, fmt.Errorf("looking for network namespaces: %w", err)
	}
	entries, err := os.ReadDir(v.proc)
	if err != nil {
		return nil, fmt.Errorf("looking for network namespaces: %w", err)
	}
	mounts, err := mount.Read(v.proc)
	if err != nil {
		return nil, fmt.Errorf("looking for network namespaces: %w", err)
	}
	seen := map[uint64]bool{here: true}
	var out []namespace
	var first error
	var hidden []string
	add := func(dir, path string) {
		n, err := inode(path)
		switch {
		case err == nil && !seen[n]:
			seen[n] = true
			out = append(out, namespace{path, n})
		case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH): // already seen, or gone
		default:
			first = cmp.Or(first, err)
			hidden = append(hidden, dir)
		}
	}
	// The kernel shows the namespaces of a process only to those who may trace it, but its network devices to all. The
	// file of devices has a different inode in each namespace (fs/proc/proc_net.c).
	devices := map[uint64]bool{}
	note := func(dir string) {
		if n, err := inode(dir + "/net/dev"); err == nil {
			devices[n] = true
		}
	}
	note("/proc/thread-self")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir, known := filepath.Join(v.proc, e.Name()), len(out)
		if add(dir, dir+"/ns/net"); len(out) > known {
			note(dir)
		}
	}
	for _, m := range mounts {
		if m.Type == "nsfs" && strings.HasPrefix(m.Root, "net:") {
			add(m.Point, m.Point)
		}
	}
	hidden = slices.DeleteFunc(hidden, func(dir string) bool {
		n, err := inode(dir + "/net/dev")
		return err == nil && devices[n]
	})
	if len(hidden) > 0 {
		return out, fmt.Errorf("the network namespaces of %d processes or mounts are not known, %s among them: %w",
			len(hidden), hidden[0], first)
	}
	return out, nil
}
