// Package port gives tests ports for programs that cannot choose a free port and report it.
package port

import (
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Free returns an address of 127.0.0.1, as host:port, at which no process listens. The port is reserved until the test
// ends: a bound socket that does not listen keeps the kernel from giving the port to others, and programs that set
// SO_REUSEADDR can listen there. process.Reserve does the same outside of tests.
func Free(t testing.TB) string {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatal("reserving a port: ", os.NewSyscallError("socket", err))
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	fail(err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	fail(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	fail(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	fail(err)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(at.(*unix.SockaddrInet4).Port)).String()
}

// Number returns the port number of an address.
func Number(t testing.TB, address string) int {
	t.Helper()
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return int(at.Port())
}
