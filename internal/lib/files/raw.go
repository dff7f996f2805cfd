package files

import "golang.org/x/sys/unix"

// CloseRaw closes a descriptor that was only read or has nothing to write back. Such a close takes microseconds and
// does not block. CloseRaw therefore makes the system call without telling Go's scheduler. Otherwise the runtime's
// monitor could hand this thread's scheduler slot to another thread: it does so if it sees the same call in two
// checks, 20 us apart (retake in runtime/proc.go).
func CloseRaw(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }
