package agent

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// gcPercent lets the heap, some 3 MB, grow to more than twice the usual size before garbage is collected: collecting is
// a tenth of what the agent costs.
const gcPercent = 150

// afterStart gives back memory that only starting needed: of the heap, and of the pages of this program that are
// mapped. Types of the kernel were parsed and programs loaded by code that does not run again; the kernel maps the
// pages that are needed again from its page cache. What cannot be given back stays: it is no fault.
func afterStart() {
	debug.SetGCPercent(gcPercent)
	debug.FreeOSMemory()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for line := range bytes.Lines(maps) {
		var from, to uintptr
		var rights string
		if n, _ := fmt.Sscanf(string(line), "%x-%x %s", &from, &to, &rights); n < 3 {
			continue
		}
		// What may be written to is this process's alone, and would be lost.
		if strings.HasSuffix(strings.TrimSpace(string(line)), " "+own) && !strings.Contains(rights, "w") {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
