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

// lean frees memory that this process has and does not need. A tracer runs on every node all the time, and Tare's
// binary is large for this task: when it starts, the initialization of its libraries touches 20 MB that a tracer never
// uses.
//
//   - Garbage is collected when the heap is a fifth larger than the live data, not twice as large: a running tracer
//     makes next to no garbage.
//   - Pages of the binary that were only read are dropped. They are in the page cache, and the few that are needed are
//     mapped again from there.
//   - One thread at a time runs Go code: there is one reader, and other threads would be woken without having work.
//
// lean changes settings of the whole process: see Options.Lean.
func lean() {
	debug.SetGCPercent(20)
	runtime.GOMAXPROCS(1)
	_ = dropCode() // first, because collection takes memory too; an error only means that more memory is in use
	debug.FreeOSMemory()
}

// dropCode drops the pages of the binary that are mapped read-only. It leaves alone a mapping with pages that were
// written nevertheless, such as the relocations of a dynamic binary, because the changes would be lost. It also leaves
// alone mappings of other files: one could be unmapped in the meantime, and the memory that is then at its addresses,
// perhaps the stack of a new thread, would be lost.
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

// mapping is an address range of this process.
type mapping struct{ from, to uintptr }

// droppable finds those mappings of a file that are private, read-only and never written, in text in the format of
// proc_pid_smaps(5).
func droppable(smaps []byte, file string) (found []mapping) {
	var m mapping
	for text := range bytes.Lines(smaps) {
		fields := bytes.Fields(text)
		switch {
		// 00400000-0105c000 r-xp 00000000 fe:00 1234 /usr/bin/tare
		case len(fields) >= 5 && len(fields[1]) == 4 && bytes.IndexByte(fields[0], '-') > 0:
			m = mapping{}
			_, path, _ := bytes.Cut(text, []byte{'/'}) // the path may contain spaces
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
		// This line comes after the line of its mapping.
		case len(fields) == 3 && string(fields[0]) == "Anonymous:" && string(fields[1]) == "0" && m.from < m.to:
			found = append(found, m)
		}
	}
	return found
}
