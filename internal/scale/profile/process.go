package profile

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"tare/internal/scale/host/proc"
)

// maxMaps is the maximum number of bytes read of a process's list of mappings: about 10,000 mappings of 100 bytes.
const maxMaps = 1 << 20

// Read reads which code a process has mapped.
func Read(pid int) (*Process, error) {
	comm, err := proc.FS{}.Comm(pid)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, fmt.Errorf("reading what a process has mapped: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMaps))
	if err != nil {
		return nil, fmt.Errorf("reading what process %d has mapped: %w", pid, err)
	}
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)) // fails for a kernel thread, which has none
	return &Process{PID: pid, Comm: comm, Program: program, Mappings: parseMaps(b)}, nil
}

// parseMaps reads the mappings of code in /proc/PID/maps (proc_pid_maps(5)):
//
//	start-end perms offset device inode path
//
// A path extends to the end of the line and may contain spaces; the kernel writes a line feed in it as \012.
func parseMaps(b []byte) (all []Mapping) {
	for line := range bytes.Lines(b) {
		rest := strings.TrimSuffix(string(line), "\n")
		var fields [5]string
		for i := range fields {
			fields[i], rest, _ = strings.Cut(rest, " ")
		}
		if len(fields[1]) < 4 || fields[1][2] != 'x' {
			continue
		}
		start, end, _ := strings.Cut(fields[0], "-")
		m := Mapping{Path: strings.TrimLeft(rest, " "), Device: fields[3]}
		var errs [4]error
		m.Start, errs[0] = strconv.ParseUint(start, 16, 64)
		m.End, errs[1] = strconv.ParseUint(end, 16, 64)
		m.Offset, errs[2] = strconv.ParseUint(fields[2], 16, 64)
		m.Inode, errs[3] = strconv.ParseUint(fields[4], 10, 64)
		if slices.ContainsFunc(errs[:], func(err error) bool { return err != nil }) || m.End <= m.Start ||
			len(all) > 0 && m.Start < all[len(all)-1].End {
			continue
		}
		all = append(all, m)
	}
	return all
}
