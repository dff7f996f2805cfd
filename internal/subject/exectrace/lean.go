package exectrace

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// lean gives back what this process has in memory and does not need. A tracer runs on every node, for ever, and Tare's binary is a large one for
// so small a task: when it starts, its libraries set themselves up, and touch 20 MB for things that a tracer never does.
//
//   - Garbage is collected at a fifth over what is in use, not at double: once it runs, the tracer makes next to none.
//   - Pages of the binary that were only read are let go. They are in the page cache, and come back from there one by one as they are needed,
//     which are few.
//   - One thread at a time runs Go code: there is one reader, and others that the runtime wakes to help it find nothing to do.
//
// It changes settings of the whole process: see Options.Lean.
func lean() {
	debug.SetGCPercent(20)
	runtime.GOMAXPROCS(1)
	_ = dropCode() // first, for collecting garbage takes memory, too; without it there is only more in memory
	debug.FreeOSMemory()
}

// dropCode lets the pages of files go that this process maps and cannot write to. A mapping in which pages were written nevertheless, as the
// relocations of a dynamic binary are, is left alone: they would be lost.
func dropCode() error {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("reading what this process maps: %w", err)
	}
	var from, to uintptr
	for text := range bytes.Lines(maps) {
		fields := bytes.Fields(text)
		switch {
		case len(fields) >= 6 && len(fields[1]) == 4 && bytes.IndexByte(fields[0], '-') > 0: // 00400000-0105c000 r-xp 00000000 fe:00 1234 /usr/bin/tare
			from, to = 0, 0
			if fields[1][0] == 'r' && fields[1][1] == '-' && fields[1][3] == 'p' && fields[5][0] == '/' {
				first, last, _ := bytes.Cut(fields[0], []byte{'-'})
				a, err1 := strconv.ParseUint(string(first), 16, 64)
				b, err2 := strconv.ParseUint(string(last), 16, 64)
				if err1 == nil && err2 == nil && a < b {
					from, to = uintptr(a), uintptr(b)
				}
			}
		case len(fields) == 3 && string(fields[0]) == "Anonymous:" && string(fields[1]) == "0" && from < to: // after the line of its mapping
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
				return fmt.Errorf("letting go of %x-%x: %w", from, to, errno)
			}
		}
	}
	return nil
}
