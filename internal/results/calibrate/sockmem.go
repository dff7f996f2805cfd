package calibrate

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketMemory returns the memory that the kernel holds for a TCP socket, by the socket's own account (SO_MEMINFO):
// received, queued to be sent, and set aside (sk_get_meminfo in net/core/sock.c).
func socketMemory(fd int) (uint64, error) {
	var info [9]uint32 // SK_MEMINFO_*: include/uapi/linux/sock_diag.h
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	const received, setAside, queued = 0, 4, 5
	return uint64(info[received]) + uint64(info[setAside]) + uint64(info[queued]), nil
}
