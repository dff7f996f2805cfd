package agent

import (
	"runtime/debug"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// How far the heap grows beyond what is live, in percent, before garbage is collected. Usually it doubles, as Go has
// it: collecting is a tenth of what the agent costs, and 150 % made it 2 to 3 MB larger with 300 groups. As it starts,
// which parses the types of the kernel, of which little stays, and while there are two meters, the agent is largest:
// then memory comes first.
const (
	usualGrowth = 100
	smallGrowth = 40
)

func saveTime() { debug.SetGCPercent(usualGrowth) }

func saveMemory() {
	debug.SetGCPercent(smallGrowth)
	debug.FreeOSMemory()
}

// afterStart returns memory that only starting needed, of the heap and of the pages of this program that are mapped.
// Types of the kernel were parsed and programs loaded by code that does not run again, and the kernel maps the pages
// that are needed again from its page cache. Where this fails the agent is larger, and works.
func afterStart() {
	saveTime()
	debug.FreeOSMemory()
	self, err := procfs.Self()
	if err != nil {
		return
	}
	own, err := self.Executable()
	if err != nil {
		return
	}
	maps, err := self.ProcMaps()
	if err != nil {
		return
	}
	for _, m := range maps {
		// What may be written to is this process's alone, and would be lost.
		if m.Pathname == own && !m.Perms.Write {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.StartAddr, m.EndAddr-m.StartAddr, unix.MADV_DONTNEED)
		}
	}
}
