package agent

import (
	"runtime/debug"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// The growth of the heap, in percent, after which garbage is collected (GOGC). usualGrowth is Go's default: with it,
// collecting garbage is a tenth of the agent's cost. With 150 % the agent was 2 to 3 MB larger on a machine with 300
// groups. smallGrowth is for the times at which the agent is largest: while it parses the kernel's types at its start,
// and while it has two meters.
const (
	usualGrowth = 100
	smallGrowth = 40
)

// saveTime makes the heap grow as usual between collections.
func saveTime() { debug.SetGCPercent(usualGrowth) }

// saveMemory makes the heap grow less between collections, and returns free memory to the kernel.
func saveMemory() {
	debug.SetGCPercent(smallGrowth)
	debug.FreeOSMemory()
}

// afterStart releases memory that only the start needed: free heap, and mapped pages of this program's file. The code
// that parsed the kernel's types and loaded programs does not run again, and the kernel maps pages that are needed
// again from its page cache. If this fails, the agent works but is larger.
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
		// Writable pages are private to this process, and their contents would be lost.
		if m.Pathname == own && !m.Perms.Write {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.StartAddr, m.EndAddr-m.StartAddr, unix.MADV_DONTNEED)
		}
	}
}
