// Package storebench is the subject "store": one design of internal/mesh/store, in a separate process and control
// group. It flushes the same changes whatever the design, as fast as it can, and counts the time and operations that
// this takes. A data plane built on the store pays these costs for each change.
package storebench

import "tare/internal/mesh/store"

// The operations to measure.
const (
	Insert  = "insert"  // add a resource that does not exist
	Replace = "replace" // replace an existing resource by another with the same name
	Delete  = "delete"  // remove an existing resource
	Lookup  = "lookup"  // change nothing; a program in the kernel looks up services
)

// The flushed resources, from the two benchmarks of Kmesh's map update proposal (package storeload).
const (
	Cluster  = "cluster"
	Listener = "listener"
)

// The forms of a change, before it is flushed.
const (
	Struct = "struct" // decoded
	Bytes  = "bytes"  // an xDS resource, encoded
)

// The possible values of options.
var (
	Resources  = []string{Cluster, Listener}
	Operations = []string{Insert, Replace, Delete, Lookup}
	Forms      = []string{Struct, Bytes}
)

// Options selects the store and the work to measure.
type Options struct {
	Store     string // design or design:variant
	Resource  string
	Operation string
	From      string
	Services  int // number of services in the store, besides the flushed resources
	Endpoints int // endpoints of each service
	Max       store.Options
}

// DefaultEndpoints is the default number of endpoints of each service.
const DefaultEndpoints = 20

// Limits of the content of a store.
const (
	MaxServices  = 100_000
	MaxEndpoints = 1000 // of one service
)
