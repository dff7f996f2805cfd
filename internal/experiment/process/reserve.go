package process

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Reservation reserves a TCP port of an address for a process that will listen there.
//
// The socket is bound and does not listen. The kernel then does not choose the port when a process asks for any free
// port, neither to bind (inet_csk_find_open_port in net/ipv4/inet_connection_sock.c treats two sockets with
// SO_REUSEADDR as a conflict there) nor to connect (__inet_hash_connect in net/ipv4/inet_hashtables.c skips ports that
// are bound). A process that names the port and sets SO_REUSEADDR can bind it and listen, as long as no other process
// does (inet_bind_conflict), and gets the connections. Until then connections are refused.
type Reservation struct {
	Address string // host:port

	fd int
}

// Reserve reserves a free port of an IPv4 address, in the network namespace of this thread.
func Reserve(host netip.Addr) (*Reservation, error) {
	fail := func(fd int, err error) (*Reservation, error) {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing was sent
		}
		return nil, fmt.Errorf("reserving a port: %w", os.NewSyscallError("socket", err))
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(-1, err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fail(fd, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: host.As4()}); err != nil {
		return fail(fd, err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return fail(fd, err)
	}
	port := at.(*unix.SockaddrInet4).Port
	return &Reservation{netip.AddrPortFrom(host, uint16(port)).String(), fd}, nil
}

// Release releases the port.
func (r *Reservation) Release() { _ = unix.Close(r.fd) } // nothing was sent
