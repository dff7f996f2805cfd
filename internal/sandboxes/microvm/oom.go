package microvm

import (
	"bytes"
	"fmt"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
)

// OutOfMemory is the name of an annotation in a container's state. Its value is a JSON list of Kill: the processes that
// the guest's kernel killed because the guest or a control group in it was out of memory.
const OutOfMemory = Annotation + "out_of_memory"

// Kill is a process that the guest's kernel killed because it was out of memory.
type Kill struct {
	Process string `json:"process"` // with its pid in the guest: "process 80 (dd)"
	Why     string `json:"why"`     // such as "the limit of its container is 67.1 MB"
}

// maxKills is the maximum number of kills that are recorded. Later ones are dropped.
const maxKills = 16

// killLine matches the line that the kernel prints for each victim (__oom_kill_process in mm/oom_kill.c). The kernel
// prints it with pr_err, so it reaches the console once machinePlan has enabled errors there. The name in parentheses
// is chosen by the program, and may contain anything. The first words come from the callers of oom_kill_process:
// "Memory cgroup out of memory" if a group reached its limit, and otherwise "Out of memory".
var killLine = text.LazyRegexp(`(Memory cgroup out of memory|Out of memory)[^:]*: Killed process ([0-9]{1,10}) \((.{0,16})\)` +
	` total-vm:`)

// killWatch reads the guest's console and reports each victim.
type killWatch struct {
	line []byte
	kill func(cgroup bool, process string) // cgroup: whether a control group, and not the whole guest, was out of memory
}

// maxLine is the number of bytes of each console line that are examined.
const maxLine = 1024

// Write accepts all of p, and never fails.
func (w *killWatch) Write(p []byte) (int, error) {
	for rest := p; ; {
		line, after, ended := bytes.Cut(rest, []byte{'\n'})
		if room := maxLine - len(w.line); room > 0 {
			w.line = append(w.line, line[:min(room, len(line))]...)
		}
		if !ended {
			return len(p), nil
		}
		if m := killLine().FindSubmatch(w.line); m != nil {
			name := strings.Map(printable, strings.ToValidUTF8(string(m[3]), "?"))
			w.kill(m[1][0] == 'M', fmt.Sprintf("process %s (%s)", m[2], name))
		}
		w.line, rest = w.line[:0], after
	}
}

// printable replaces control characters, which could affect a terminal, in a process's name.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}

// killed returns a function that records a process killed by the guest's kernel. A container may be able to print the
// kernel's lines itself without end, so kills beyond maxKills must not cost a write of the state.
func (s *shim) killed(memoryMiB int) func(cgroup bool, process string) {
	return func(cgroup bool, process string) {
		s.mu.Lock()
		full := len(s.box.OutOfMemory) >= maxKills
		s.mu.Unlock()
		if full {
			return
		}
		why := fmt.Sprintf("the guest has %s in all", quantity.Value(float64(memoryMiB)*(1<<20), quantity.Bytes))
		if limit := memoryLimit(s.spec); cgroup && limit > 0 {
			why = "the limit of its container is " + quantity.Value(float64(limit), quantity.Bytes)
		} else if cgroup {
			why = "a control group inside its container was full"
		}
		_ = s.set(func(b *sandbox) { // if this fails, the end of the process is still recorded
			b.OutOfMemory = append(b.OutOfMemory, Kill{process, why})
		})
	}
}

// memoryLimit returns the memory limit of a bundle, in bytes, or 0 if it has none.
func memoryLimit(s *specs.Spec) int64 {
	if r := s.Linux.Resources; r != nil && r.Memory != nil && r.Memory.Limit != nil {
		return max(0, *r.Memory.Limit)
	}
	return 0
}
