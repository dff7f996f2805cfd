// Package store defines the interface of stores. A store keeps a mesh configuration in BPF maps for programs to read,
// and changes it while they run. Each design is a package below this one.
package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
)

// Store keeps a configuration. It must not be used concurrently, except for Close.
type Store interface {
	// Apply makes a change. The design determines how much of a change programs see at once (Design.Atomic). If a change
	// is invalid for this store or does not fit, nothing is applied, and the error is a *fault.Error of code Usage, whose
	// Where is the resource's name. A change can use the room and addresses that it frees. Removing a name that does not
	// exist is not an error; a name that is both added and removed is removed.
	Apply(ctx context.Context, change mesh.Change) (Work, error)
	// Maps returns the maps that the store's programs use, by their names in the design's header. The store still owns
	// them.
	Maps() map[string]*ebpf.Map
	// Cluster returns the number that programs and counters use for a cluster; ok is false if there is no such cluster.
	// The number does not change while the cluster exists, and is below Options.ClusterNumbers. A number that a change
	// frees is not reused before the next change.
	Cluster(name string) (id uint32, ok bool)
	// Close releases the maps and everything else that the store holds.
	Close() error
}

// Work is the cost of a change, counted while it was made.
type Work struct {
	Records      int // records written
	Updates      int // map elements that system calls wrote
	Deletes      int // map elements that system calls deleted
	Syscalls     int // bpf() and others, including those that failed or only read
	Bytes        int // of keys and values, given to the kernel or written into mapped memory
	GracePeriods int // waits for readers that blocked the writer
}

// Add adds other to w.
func (w *Work) Add(other Work) {
	w.Records += other.Records
	w.Updates += other.Updates
	w.Deletes += other.Deletes
	w.Syscalls += other.Syscalls
	w.Bytes += other.Bytes
	w.GracePeriods += other.GracePeriods
}

// Options configures a store of any design. The zero value means the defaults.
type Options struct {
	MaxClusters  uint32 // default DefaultMaxClusters
	MaxListeners uint32 // default DefaultMaxListeners
	MaxEndpoints uint32 // of all clusters together; default DefaultMaxEndpoints
	// Variant is one of Design.Variants; empty means the first.
	Variant string
}

// NoCluster is the number that programs get if no cluster was chosen, or if the chosen one does not exist.
const NoCluster = 1<<32 - 1

// Default sizes.
const (
	DefaultMaxClusters  = 8192
	DefaultMaxListeners = 8192
	DefaultMaxEndpoints = 1 << 17
)

// WithDefaults returns o with the default for each size that is 0.
func (o Options) WithDefaults() Options {
	o.MaxClusters = cmp.Or(o.MaxClusters, DefaultMaxClusters)
	o.MaxListeners = cmp.Or(o.MaxListeners, DefaultMaxListeners)
	o.MaxEndpoints = cmp.Or(o.MaxEndpoints, DefaultMaxEndpoints)
	return o
}

// ClusterNumbers returns the number of rows that a table by cluster number needs. All numbers are below it.
func (o Options) ClusterNumbers() uint32 { return 2*o.WithDefaults().MaxClusters + 1 }

// Atomic is the part of a change that programs see at once.
type Atomic uint8

// The guarantees, from weak to strong.
const (
	PerRecord   Atomic = iota // programs can see old and new parts of a resource together
	PerResource               // programs see a cluster or a listener whole, old or new
	PerChange                 // programs see a change whole
)

func (a Atomic) String() string {
	return [...]string{"per record", "per resource", "per change"}[a]
}

// Design is one way to build a store.
type Design struct {
	Name     string
	Variants []string // the first is the default; empty if the design has none
	Atomic   Atomic
	Open     func(Options) (Store, error)
	// Ask returns the program "ask" (see bpf/ask.c), to be loaded with the store's maps.
	Ask func() (*ebpf.CollectionSpec, error)
}

var designs = map[string]Design{}

// Register adds a design. The packages of designs call it from init.
func Register(d Design) {
	if _, taken := designs[d.Name]; taken {
		panic("store: two designs are called " + d.Name)
	}
	designs[d.Name] = d
}

// Designs returns all registered designs, sorted by name.
func Designs() []Design {
	var all []Design
	for _, name := range slices.Sorted(maps.Keys(designs)) {
		all = append(all, designs[name])
	}
	return all
}

// Lookup finds a design by "name" or "name:variant", and sets the variant in the returned options.
func Lookup(text string) (Design, Options, error) {
	name, variant, _ := strings.Cut(text, ":")
	d, ok := designs[name]
	if !ok {
		return Design{}, Options{}, fault.New(fault.Usage, "store", "it can be one of "+
			strings.Join(slices.Sorted(maps.Keys(designs)), ", "), "there is no store %q", name)
	}
	if variant != "" && !slices.Contains(d.Variants, variant) {
		hint := "it has none: leave it out"
		if len(d.Variants) > 0 {
			hint = "it can be one of " + strings.Join(d.Variants, ", ")
		}
		return Design{}, Options{}, fault.New(fault.Usage, "store", hint, "store %s has no variant %q", name, variant)
	}
	return d, Options{Variant: variant}, nil
}

// Trait describes how much of a change programs see at once with the design that Lookup finds, such as "whole per
// change". It returns "" for an unknown design.
func Trait(text string) string {
	d, _, err := Lookup(text)
	if err != nil {
		return ""
	}
	return "whole " + d.Atomic.String()
}

// TooLarge returns the error for a resource that a design cannot hold.
func TooLarge(name, format string, args ...any) error {
	return fault.New(fault.Usage, name, "make it smaller, or use another store", "%s", fmt.Sprintf(format, args...))
}
