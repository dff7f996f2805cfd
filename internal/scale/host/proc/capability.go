package proc

import (
	"os"

	"golang.org/x/sys/unix"
)

// Capable reports whether this thread has a capability (such as unix.CAP_SYS_PTRACE) in its user namespace.
func Capable(capability uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.Geteuid() == 0
	}
	return data[capability/32].Effective>>(capability%32)&1 == 1
}
