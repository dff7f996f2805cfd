package redirect

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// soOriginalDst is SO_ORIGINAL_DST (include/uapi/linux/netfilter_ipv4.h).
const soOriginalDst = 80

// destination returns the original destination of an accepted IPv4 connection, as proxies find it: what the kernel or
// an eBPF program returns for the socket option, or else the address of the socket, which is the destination for
// transparent proxies and for connections that were not redirected.
func destination(c *net.TCPConn) netip.AddrPort {
	local := c.LocalAddr().(*net.TCPAddr).AddrPort()
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	raw, err := c.SyscallConn()
	if err != nil {
		return local
	}
	var to unix.RawSockaddrInet4
	size := uint32(unsafe.Sizeof(to))
	var failed unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, failed = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_IP, soOriginalDst,
			uintptr(unsafe.Pointer(&to)), uintptr(unsafe.Pointer(&size)), 0)
	})
	if err != nil || failed != 0 || to.Family != unix.AF_INET {
		return local
	}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&to.Port))[:])
	return netip.AddrPortFrom(netip.AddrFrom4(to.Addr), port)
}
