package microvm

import (
	"bytes"
	"fmt"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
)

// OutOfMemory is the annotation of a state that lists the processes that the guest's kernel killed because memory was
// short: Kills as JSON.
const OutOfMemory = Annotation + "out_of_memory"

// Kill is a process that the guest's kernel killed because memory was short.
type Kill struct {
	Process string `json:"process"` // by the guest's numbers: "process 80 (dd)"
	Why     string `json:"why"`     // "the limit of its container is 67.1 MB"
}

// maxKills is how many kills are recorded: the first ones.
const maxKills = 16

// killLine matches what the kernel prints for each victim (__oom_kill_process in mm/oom_kill.c): by pr_err, which
// reaches the console once machinePlan has let errors through. A program can choose its own name. The first words are
// from oom_kill_process's callers: "Memory cgroup out of memory" if a group's limit was reached, else "Out of memory".
var killLine = text.LazyRegexp(`(Memory cgroup out of memory|Out of memory)[^:]*: Killed process ([0-9]{1,10}) \((.{0,16})\)` +
	` total-vm:`)

// killWatch reads the guest's console and reports each victim.
type killWatch struct {
	line []byte
	kill func(cgroup bool, process string)
}

// maxLine is the maximum length of a relevant line of the console.
const maxLine = 1024

// Write accepts everything, and never fails.
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

// printable replaces characters of a process's name that could control a terminal.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}

// killed returns a function that records a victim of the guest's kernel.
func (s *shim) killed(memoryMiB int) func(cgroup bool, process string) {
	return func(cgroup bool, process string) {
		why := fmt.Sprintf("the guest has %s in all", quantity.Value(float64(memoryMiB)*(1<<20), quantity.Bytes))
		if limit := memoryLimit(s.spec); cgroup && limit > 0 {
			why = "the limit of its container is " + quantity.Value(float64(limit), quantity.Bytes)
		} else if cgroup {
			why = "a control group inside its container was full"
		}
		_ = s.set(func(b *sandbox) { // if it cannot be written, the end of the process is still recorded
			if len(b.OutOfMemory) < maxKills {
				b.OutOfMemory = append(b.OutOfMemory, Kill{process, why})
			}
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
