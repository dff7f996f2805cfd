// Package storebench is the subject that is a store: one design of internal/mesh/store, opened in a process and
// a control group of its own, that flushes the same changes as every other design, as fast as it goes, and counts what
// that takes. Tare itself is one of its users: what a store costs is what a data plane on top of it pays for each
// change.
package storebench

import "tare/internal/mesh/store"

// The operations.
const (
	Insert  = "insert"  // a resource that is not there
	Replace = "replace" // a resource that is there, by another of the same name
	Delete  = "delete"  // a resource that is there, away
	Lookup  = "lookup"  // no change at all: questions by a program in the kernel
)

// The resources that are flushed: those of the two benchmarks of Kmesh's map update proposal (package storeload).
const (
	Cluster  = "cluster"
	Listener = "listener"
)

// The forms in which a change comes.
const (
	Struct = "struct" // decoded
	Bytes  = "bytes"  // an xDS resource as it stands on the wire
)

// The words that options can be.
var (
	Resources  = []string{Cluster, Listener}
	Operations = []string{Insert, Replace, Delete, Lookup}
	Forms      = []string{Struct, Bytes}
)

// Options say which store, and what it has to do.
type Options struct {
	Store     string // design or design:variant
	Resource  string
	Operation string
	From      string
	Services  int // in the store beside what is flushed
	Endpoints int // of each of them
	Max       store.Options
}

// DefaultEndpoints is how many endpoints each service has where it is not said.
const DefaultEndpoints = 20

// Bounds of what a store is filled with.
const (
	MaxServices  = 100_000
	MaxEndpoints = 1000 // of one service
)
