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

// lean gives back what this process has in memory and does not need. A tracer runs on every node, for ever, and Tare's
// binary is a large one for so small a task: when it starts, its libraries set themselves up, and touch 20 MB for
// things that a tracer never does.
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

// dropCode lets the pages of the binary go that cannot be written to. A mapping in which pages were written
// nevertheless, as the relocations of a dynamic binary are, is left alone: they would be lost. So is every mapping of
// another file: it may be gone when its turn comes, and what is at its addresses then, a stack of a new thread perhaps,
// would be lost.
func dropCode() error {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("reading what this process maps: %w", err)
	}
	binary, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("finding the binary of this process: %w", err)
	}
	for _, m := range droppable(maps, binary) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("letting go of %x-%x: %w", m.from, m.to, errno)
		}
	}
	return nil
}

// mapping is addresses of this process.
type mapping struct{ from, to uintptr }

// droppable finds the mappings of a file, in the form of proc_pid_smaps(5), that are private, cannot be written to, and
// have not been.
func droppable(smaps []byte, file string) (found []mapping) {
	var m mapping
	for text := range bytes.Lines(smaps) {
		fields := bytes.Fields(text)
		switch {
		// 00400000-0105c000 r-xp 00000000 fe:00 1234 /usr/bin/tare
		case len(fields) >= 5 && len(fields[1]) == 4 && bytes.IndexByte(fields[0], '-') > 0:
			m = mapping{}
			_, path, _ := bytes.Cut(text, []byte{'/'}) // it may have spaces in it
			if mode := fields[1]; mode[0] != 'r' || mode[1] != '-' || mode[3] != 'p' ||
				"/"+string(bytes.TrimSuffix(path, []byte{'\n'})) != file {
				continue
			}
			first, last, _ := bytes.Cut(fields[0], []byte{'-'})
			a, err1 := strconv.ParseUint(string(first), 16, 64)
			b, err2 := strconv.ParseUint(string(last), 16, 64)
			if err1 == nil && err2 == nil && a < b {
				m = mapping{uintptr(a), uintptr(b)}
			}
		// after the line of its mapping
		case len(fields) == 3 && string(fields[0]) == "Anonymous:" && string(fields[1]) == "0" && m.from < m.to:
			found = append(found, m)
		}
	}
	return found
}
