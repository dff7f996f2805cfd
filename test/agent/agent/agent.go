// Package agent builds the planted agent of test/agent, and says what it is known to take.
package agent

import (
	"path/filepath"

	"tare/test/binary"
)

// What the agent takes, and how well that is known, as parts of it. It keeps its CPU time to the clock of its process,
// sizes its memory by what the kernel says it has, and its program ends by the clock; what each misses that by is less.
const (
	CPUs        = 0.05
	CPUsError   = 0.02
	MemoryBytes = 50e6
	MemoryError = 0.02
	BPFSeconds  = 100e-6 // of each connection
	BPFError    = 0.02
)

// Known is one thing that is planted.
type Known struct {
	Metric      string
	Value       float64
	Uncertainty float64 // of Value, in its unit
}

// Planted are the things that are, as metrics of Tare.
var Planted = []Known{
	{"subject_cpus", CPUs, CPUs * CPUsError},
	{"memory_anon_bytes", MemoryBytes, MemoryBytes * MemoryError},
	{"bpf_seconds_per_connection", BPFSeconds, BPFSeconds * BPFError},
}

// In reports whether an interval recovers what is planted: whether the two overlap.
func (k Known) In(lo, hi float64) bool {
	return lo <= k.Value+k.Uncertainty && k.Value-k.Uncertainty <= hi
}

// Build puts the agent's binary into dir and returns its path.
func Build(dir string) (string, error) {
	out := filepath.Join(dir, "planted-agent")
	return out, binary.Program(out, "./test/agent")
}
