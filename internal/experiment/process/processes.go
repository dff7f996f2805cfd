package process

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// processes returns the processes of the command in order of pid, zombies included, but never this process.
func (r *Running) processes() []proc.Process {
	pid := r.PID()
	var pids []int
	if r.command.CgroupDir != "" {
		pids = append([]int{pid}, cgroup.Members([]string{r.command.CgroupDir})...)
	} else {
		pids = append(inSession(pid), pid)
	}
	return stat(proc.FS{}, pids)
}

// stat reads the processes that still exist, except this one and kernel threads.
func stat(f proc.FS, pids []int) []proc.Process {
	slices.Sort(pids)
	var ps []proc.Process
	for _, pid := range slices.Compact(pids) {
		if p, err := f.Process(pid); err == nil && pid != os.Getpid() && !p.Kernel {
			ps = append(ps, p)
		}
	}
	return ps
}

// inSession lists the processes of a session and all their descendants, which may have created other sessions.
func inSession(session int) []int {
	all, err := proc.FS{}.PIDs()
	if err != nil {
		return nil
	}
	var mine []int
	for _, pid := range all {
		if sid, err := unix.Getsid(pid); err == nil && sid == session {
			mine = append(mine, pid)
		}
	}
	return WithDescendants(proc.FS{}, mine)
}

// WithDescendants adds to processes their descendants.
func WithDescendants(f proc.FS, pids []int) []int {
	all, err := f.Processes()
	if err != nil {
		return pids
	}
	return descendants(all, pids)
}

// descendants is WithDescendants for a table of all processes that was read before.
func descendants(all map[int]proc.Process, pids []int) []int {
	children := map[int][]int{}
	for pid, p := range all {
		children[p.PPID] = append(children[p.PPID], pid)
	}
	seen := map[int]bool{}
	for queue := slices.Clone(pids); len(queue) > 0; queue = queue[1:] {
		if pid := queue[0]; !seen[pid] {
			seen[pid] = true
			queue = append(queue, children[pid]...)
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Listening returns the TCP addresses on which the command listens, as host:port that can be dialled from here: an
// address of all interfaces becomes the loopback address. They are in order of address, IPv4 before IPv6, and then of
// port.
func (r *Running) Listening() []string { return listening("/proc", r.Processes()) }

func listening(root string, pids []int) []string {
	sockets := map[string]bool{}
	var owners []int
	for _, pid := range pids {
		n := len(sockets)
		if addSockets(sockets, root, pid); len(sockets) > n {
			owners = append(owners, pid)
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	found := map[netip.AddrPort]bool{}
	for _, pid := range owners { // each may be in another network namespace
		_ = eachSocket(filepath.Join(root, strconv.Itoa(pid), "net"), func(line string) { // it may have ended
			if a, inode, ok := parseListener(line); ok && sockets[inode] {
				found[dialable(a)] = true
			}
		})
	}
	return lists.Map(slices.SortedFunc(maps.Keys(found), netip.AddrPort.Compare), netip.AddrPort.String)
}

// addSockets adds the inodes of a process's sockets.
func addSockets(sockets map[string]bool, root string, pid int) {
	dir := filepath.Join(root, strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // it has ended
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if inode, ok := strings.CutPrefix(to, "socket:["); ok && err == nil {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
	}
}

// ServedElsewhere describes the process that listens at an address of this network namespace if it is not one of the
// given ones, for example because a container engine or a service manager has started it. ServedElsewhere returns "" if
// there is no such process. If several sockets share the address (SO_REUSEPORT), each must be held by one of the given
// processes.
func ServedElsewhere(l *cgroup.Layout, address string, ours []int) (string, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return "", nil // a host name
	}
	theirs := map[string]bool{} // inodes of sockets that none of ours holds
	err = eachSocket("/proc/thread-self/net", func(line string) {
		a, inode, ok := parseListener(line)
		if ok && a.Port() == to.Port() && (a.Addr() == to.Addr().Unmap() || a.Addr().IsUnspecified()) {
			theirs[inode] = true
		}
	})
	holds := func(pid int) (held []string) {
		sockets := map[string]bool{}
		addSockets(sockets, "/proc", pid)
		for inode := range sockets {
			if theirs[inode] {
				held = append(held, inode)
			}
		}
		return held
	}
	for _, pid := range append(slices.Clone(ours), os.Getpid()) {
		for _, inode := range holds(pid) {
			delete(theirs, inode)
		}
	}
	if err != nil || len(theirs) == 0 {
		return "", err
	}
	pids, err := proc.FS{}.PIDs()
	if err != nil {
		return "", err
	}
	for _, pid := range pids {
		if len(holds(pid)) == 0 {
			continue
		}
		comm, err := proc.FS{}.Comm(pid)
		group, err2 := l.PathOf(pid)
		if err == nil && err2 == nil {
			return fmt.Sprintf("process %d (%s) in the control group %.200s listens at %s, and is not part of the trial", pid,
				text.Plain(comm), group, address), nil
		}
	}
	return "", nil
}

// Connection is the two ends of a TCP connection.
type Connection struct{ Local, Remote netip.AddrPort }

// Connections returns the TCP connections of this network namespace that have the port at either end, including those
// that are closing or were closed within the last minute (TIME_WAIT).
func Connections(port uint16) ([]Connection, error) {
	var all []Connection
	err := eachSocket("/proc/thread-self/net", func(line string) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] == stateListen {
			return
		}
		local, ok1 := parseEnd(f[1])
		remote, ok2 := parseEnd(f[2])
		if ok1 && ok2 && (local.Port() == port || remote.Port() == port) {
			all = append(all, Connection{local, remote})
		}
	})
	return all, err
}

// Dialled reports whether one of the processes now has a TCP connection to an address.
func Dialled(pids []int, to netip.AddrPort) (has bool) {
	for _, pid := range pids { // each may be in a separate network namespace
		sockets := map[string]bool{}
		addSockets(sockets, "/proc", pid)
		if len(sockets) == 0 {
			continue
		}
		_ = eachSocket(filepath.Join("/proc", strconv.Itoa(pid), "net"), func(line string) { // it may have ended
			if f := strings.Fields(line); len(f) >= 10 && sockets[f[9]] {
				remote, ok := parseEnd(f[2])
				has = has || ok && remote == to
			}
		})
	}
	return has
}

// eachSocket calls a function with the line of each TCP socket of a network namespace. dir is the directory of the
// namespace in /proc, such as /proc/1234/net.
func eachSocket(dir string, line func(string)) error {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name == "tcp6" {
			continue // there is no IPv6
		}
		if err != nil {
			return err
		}
		scan := bufio.NewScanner(f)
		for scan.Scan() {
			line(scan.Text())
		}
		_ = f.Close() // nothing was written
		if err := scan.Err(); err != nil {
			return err
		}
	}
	return nil
}

// stateListen is TCP_LISTEN of include/net/tcp_states.h, as the files print it.
const stateListen = "0A"

// parseListener reads a line of /proc/<pid>/net/tcp or tcp6 (get_tcp4_sock in net/ipv4/tcp_ipv4.c). ok is false for a
// socket that does not listen.
func parseListener(line string) (a netip.AddrPort, inode string, ok bool) {
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != stateListen {
		return a, "", false
	}
	a, ok = parseEnd(f[1])
	return a, f[9], ok
}

// parseEnd reads an address with a port in the format of these files.
func parseEnd(text string) (a netip.AddrPort, ok bool) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(raw) != 4 && len(raw) != 16 || n == 0 {
		return a, false
	}
	// Every four bytes of the address are printed as a number of this machine's byte order.
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	ip, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)), true
}

// dialable replaces the address of all interfaces with the loopback address.
func dialable(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().IsUnspecified() {
		return a
	}
	if a.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), a.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), a.Port())
}

// ResidentOf returns the sum of the resident memory of processes, and the sum of their peaks, in bytes. A page counts
// once for each process that shares it. Processes that have ended are skipped.
func ResidentOf(f proc.FS, pids []int) (now, peak uint64, err error) {
	for _, pid := range pids {
		n, p, err := f.Resident(pid)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("reading the memory of a command: %w", err)
		}
		now, peak = now+n, peak+p
	}
	return now, peak, nil
}

// FreePort returns a TCP port of the loopback address that is unused in this network namespace at this moment.
func FreePort() (int, error) {
	all, err := FreeAddresses(1)
	if err != nil {
		return 0, err
	}
	at, err := netip.ParseAddrPort(all[0])
	return int(at.Port()), err
}

// FreeAddresses returns n different addresses of the loopback interface with unused TCP ports, as host:port. Another
// process may take a port before the caller's command listens there; the command then fails to start, and its trial is
// repeated. A Reservation prevents that, but only commands that set SO_REUSEADDR can listen beside it, and those that
// users name need not.
func FreeAddresses(n int) (all []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all, nil
}
