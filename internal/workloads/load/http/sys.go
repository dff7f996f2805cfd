package http

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The functions below call the kernel directly. None of them except sysWait can block, because every socket is
// non-blocking. Informing the Go scheduler about the calls, as package syscall does, would gain nothing and cost about
// 50 ns each.

// address is a socket address in the kernel's format.
type address struct {
	raw    unix.RawSockaddrInet6 // large enough for both families
	size   uintptr
	family int
}

func newAddress(ap netip.AddrPort) *address {
	a := new(address)
	ip := ap.Addr().Unmap()
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], ap.Port())
	if ip.Is4() {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&a.raw))
		in.Family, in.Addr, in.Port = unix.AF_INET, ip.As4(), *(*uint16)(unsafe.Pointer(&port))
		a.family, a.size = unix.AF_INET, unix.SizeofSockaddrInet4
		return a
	}
	a.raw.Family, a.raw.Addr, a.raw.Port = unix.AF_INET6, ip.As16(), *(*uint16)(unsafe.Pointer(&port))
	a.family, a.size = unix.AF_INET6, unix.SizeofSockaddrInet6
	return a
}

// noAddress has the family AF_UNSPEC: connecting a socket to it dissolves the socket's connection (connect(2)).
var noAddress = func() *address {
	a := &address{family: unix.AF_UNSPEC, size: unix.SizeofSockaddrInet4}
	a.raw.Family = unix.AF_UNSPEC
	return a
}()

// setIPv4 sets the IP address in an IPv4 socket address.
func (a *address) setIPv4(ip [4]byte) { (*unix.RawSockaddrInet4)(unsafe.Pointer(&a.raw)).Addr = ip }

func sysSocket(family int) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family),
		unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return int(fd), errno
}

func sysBind(fd int, a *address) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&a.raw)), a.size)
	return errno
}

func sysConnect(fd int, a *address) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&a.raw)), a.size)
	return errno
}

func sysSetsockopt(fd, level, option int, value unsafe.Pointer, size uintptr) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(value), size, 0)
	return errno
}

// sysWrite writes without raising SIGPIPE.
func sysWrite(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func sysRead(fd int, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)))
	return int(n), errno
}

func sysEpollCtl(epoll, op, fd int, event *unix.EpollEvent) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd),
		uintptr(unsafe.Pointer(event)), 0, 0)
	return errno
}

// sysPoll returns pending events, without waiting.
func sysPoll(epoll int, events []unix.EpollEvent) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	return int(n), errno
}

// sysWait waits for events for at most ns nanoseconds (epoll_pwait2, Linux 5.11). It blocks, so it informs the Go
// scheduler.
func sysWait(epoll int, events []unix.EpollEvent, ns int64) (int, unix.Errno) {
	timeout := unix.NsecToTimespec(ns)
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)),
		uintptr(unsafe.Pointer(&timeout)), 0, 0)
	return int(n), errno
}
