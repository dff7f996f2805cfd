package files

import "golang.org/x/sys/unix"

// CloseRaw closes a descriptor that was only read or that has nothing to write back. It takes microseconds and does not
// block, so it bypasses Go's scheduler, whose monitor thread takes the processor away from a call that it sees twice, 20
// us apart (retake in runtime/proc.go).
func CloseRaw(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }
