// Package mount reads the mount table.
package mount

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is one line of mountinfo.
type Mount struct {
	Root     string   // what is mounted: a directory of the file system, or for namespaces their name
	Point    string   // mount point, as the process sees it
	Type     string   // of the file system
	Options  []string // of the file system, not of this mount: on cgroup v1 they name the controllers
	Dev      uint64   // as in stat(2)
	ReadOnly bool     // applies to this mount
}

// Read returns the mounts of this process in the order of mountinfo. proc is where procfs is mounted; /proc if empty.
func Read(proc string) ([]Mount, error) {
	text, err := os.ReadFile(filepath.Join(cmp.Or(proc, "/proc"), "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("reading what is mounted: %w", err)
	}
	return Parse(text), nil
}

// Parse parses the text of /proc/<pid>/mountinfo: proc_pid_mountinfo(5), fs/proc_namespace.c. It skips lines that do
// not have this format.
func Parse(text []byte) []Mount {
	var all []Mount
	for line := range bytes.Lines(text) {
		if m, ok := parse(strings.TrimSuffix(string(line), "\n")); ok {
			all = append(all, m)
		}
	}
	return all
}

// Indexes of the fields of a line. The optional fields, which may be none, begin at index optional and end before a
// dash.
const (
	fieldDev     = 2
	fieldRoot    = 3
	fieldPoint   = 4
	fieldOptions = 5
	optional     = 6
)

// parse parses one line. Only a blank separates fields, and blanks within fields are escaped. Names may contain other
// characters that Unicode considers white space.
func parse(line string) (m Mount, ok bool) {
	fields := strings.Split(line, " ")
	if len(fields) <= optional {
		return m, false
	}
	dash := slices.Index(fields[optional:], "-") + optional
	if dash < optional || len(fields) <= dash+3 {
		return m, false
	}
	major, minor, _ := strings.Cut(fields[fieldDev], ":")
	maj, err1 := strconv.ParseUint(major, 10, 32)
	low, err2 := strconv.ParseUint(minor, 10, 32)
	if err1 != nil || err2 != nil || !strings.HasPrefix(fields[fieldPoint], "/") {
		return m, false
	}
	return Mount{
		Root: unescape(fields[fieldRoot]), Point: unescape(fields[fieldPoint]), Type: unescape(fields[dash+1]),
		Options: strings.Split(fields[dash+3], ","), Dev: unix.Mkdev(uint32(maj), uint32(low)),
		ReadOnly: slices.Contains(strings.Split(fields[fieldOptions], ","), "ro"),
	}, true
}

// unescape replaces the octal escapes of blank, tab, newline, backslash and # (seq_escape in fs/seq_file.c).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
