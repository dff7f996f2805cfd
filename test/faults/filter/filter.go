// Package filter is the seccomp filter of package faults, which hands system calls over to that package.
package filter

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Calls are the system calls that the filter hands over: their names in a faults.Class, by number.
var Calls = map[uint32]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_MKDIR: "mkdir", unix.SYS_MKDIRAT: "mkdirat",
	unix.SYS_RMDIR: "rmdir", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_LINKAT: "linkat", unix.SYS_READ: "read", unix.SYS_PREAD64: "pread64",
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_FALLOCATE: "fallocate",
	unix.SYS_FSYNC:     "fsync", unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHOWNAT: "fchownat",
	unix.SYS_GETDENTS64: "getdents", unix.SYS_BPF: "bpf", unix.SYS_PERF_EVENT_OPEN: "perf_open", unix.SYS_MOUNT: "mount",
	unix.SYS_UMOUNT2: "umount", unix.SYS_UNSHARE: "unshare", unix.SYS_SETNS: "setns", unix.SYS_MEMFD_CREATE: "memfd",
	unix.SYS_INOTIFY_INIT1: "inotify", unix.SYS_FLOCK: "flock",
}

// Descriptor holds the calls whose first argument is a descriptor of the file that they work on.
var Descriptor = map[string]bool{
	"read": true, "pread64": true, "write": true, "pwrite64": true, "ftruncate": true, "fallocate": true, "fsync": true,
	"fchmod": true, "getdents": true, "flock": true,
}

// At holds the calls whose first two arguments are a descriptor of a directory and a path below it.
var At = map[string]bool{
	"openat": true, "openat2": true, "mkdirat": true, "unlinkat": true, "renameat": true, "renameat2": true,
	"linkat":   true,
	"fchmodat": true, "fchownat": true,
}

// Install applies the filter to this thread and to everything that the thread will start or execute, and returns the
// descriptor by which the calls are received and answered. If only is not empty, the filter hands over only the call of
// that name. The thread needs CAP_SYS_ADMIN.
func Install(only string) (listener int, err error) {
	const number = 0 // offset of nr in struct seccomp_data
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: number, Size: 4}}
	for nr, name := range Calls {
		if only != "" && name != only {
			continue
		}
		program = append(program,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF})
	}
	program = append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW})
	raw, err := bpf.Assemble(program)
	if err != nil {
		return -1, fmt.Errorf("assembling the filter: %w", err)
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filters[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	fprog := unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}
	// Once a call has been received, only a fatal signal may end the wait for its answer: Go's own signals would restart
	// the call.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return -1, fmt.Errorf("installing the filter: %w", errno)
	}
	return int(fd), nil
}
