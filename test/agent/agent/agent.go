// Package agent builds the planted agent of test/agent, and lists the agent's known costs.
package agent

import (
	"path/filepath"

	"tare/test/binary"
)

// The planted costs, each followed by its relative uncertainty. The agent paces its CPU time by its process's CPU
// clock, sizes its memory by what the kernel reports, and its eBPF program runs until the clock has advanced by
// BPFSeconds; the errors of all three are smaller than stated here.
const (
	CPUs        = 0.05
	CPUsError   = 0.02
	MemoryBytes = 50e6
	MemoryError = 0.02
	BPFSeconds  = 100e-6 // per connection
	BPFError    = 0.02
)

// Known is one planted cost.
type Known struct {
	Metric      string
	Value       float64
	Uncertainty float64 // of Value, in its unit
}

// Planted lists the planted costs, as metrics of Tare.
var Planted = []Known{
	{"subject_cpus", CPUs, CPUs * CPUsError},
	{"memory_anon_bytes", MemoryBytes, MemoryBytes * MemoryError},
	{"bpf_seconds_per_connection", BPFSeconds, BPFSeconds * BPFError},
}

// In reports whether a measured interval overlaps the planted value with its uncertainty.
func (k Known) In(lo, hi float64) bool {
	return lo <= k.Value+k.Uncertainty && k.Value-k.Uncertainty <= hi
}

// Build puts the agent's binary into dir and returns its path.
func Build(dir string) (string, error) {
	out := filepath.Join(dir, "planted-agent")
	return out, binary.Program(out, "./test/agent")
}
