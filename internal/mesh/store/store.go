// Package store says what a store is: it keeps a mesh configuration in BPF maps, where programs find it, and changes it
// under them. Each design is a package below this one.
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

// Store keeps a configuration. One goroutine at a time may use it, apart from Close.
type Store interface {
	// Apply makes a change. How much of it programs see at once is the design's promise (Design.Atomic). A change that
	// is wrong for this store or does not fit is a *fault.Error of code Usage, whose Where is the resource's name, and
	// then nothing of it is applied. Room and addresses that a change frees count for the same change. Names that are
	// removed and are not there are no error; a name that is both given and removed is removed.
	Apply(ctx context.Context, change mesh.Change) (Work, error)
	// Maps are the maps that its programs use, by the names that they have in the design's header. They stay the
	// store's.
	Maps() map[string]*ebpf.Map
	// Cluster is the number by which programs and counters know a cluster; it stays the same as long as the cluster is
	// there. Numbers are below Options.ClusterNumbers. One that a change gives back is no other cluster's before the
	// next change.
	Cluster(name string) (id uint32, ok bool)
	// Close gives everything back.
	Close() error
}

// Work is what a change took, counted as it was done.
type Work struct {
	Records      int // that were written
	Updates      int // elements of maps, by system call
	Deletes      int // the same
	Syscalls     int // bpf() and others, also those that failed or only read
	Bytes        int // handed to the kernel or stored into mapped memory, keys and values
	GracePeriods int // waits for readers that the writer stood still in
}

// Add counts other too.
func (w *Work) Add(other Work) {
	w.Records += other.Records
	w.Updates += other.Updates
	w.Deletes += other.Deletes
	w.Syscalls += other.Syscalls
	w.Bytes += other.Bytes
	w.GracePeriods += other.GracePeriods
}

// Options are of all designs. The zero value has the defaults.
type Options struct {
	MaxClusters  uint32 // default DefaultMaxClusters
	MaxListeners uint32 // default DefaultMaxListeners
	MaxEndpoints uint32 // of all clusters together; default DefaultMaxEndpoints
	// Variant is one of the design's; empty for its first.
	Variant string
}

// NoCluster is what programs get in place of a number where no cluster was chosen, or one that does not exist.
const NoCluster = 1<<32 - 1

// What the maps hold, where nothing else is asked for.
const (
	DefaultMaxClusters  = 8192
	DefaultMaxListeners = 8192
	DefaultMaxEndpoints = 1 << 17
)

// WithDefaults fills in what is not given.
func (o Options) WithDefaults() Options {
	o.MaxClusters = cmp.Or(o.MaxClusters, DefaultMaxClusters)
	o.MaxListeners = cmp.Or(o.MaxListeners, DefaultMaxListeners)
	o.MaxEndpoints = cmp.Or(o.MaxEndpoints, DefaultMaxEndpoints)
	return o
}

// ClusterNumbers is above all numbers of clusters: a table of something by cluster has so many rows.
func (o Options) ClusterNumbers() uint32 { return 2*o.WithDefaults().MaxClusters + 1 }

// Atomic is how much of a change programs see at once.
type Atomic uint8

// The promises, from weak to strong.
const (
	PerRecord   Atomic = iota // parts of a resource, old and new, can be seen together
	PerResource               // a cluster or listener is seen whole, old or new
	PerChange                 // a change is seen whole
)

func (a Atomic) String() string {
	return [...]string{"per record", "per resource", "per change"}[a]
}

// Design is one way to build a store.
type Design struct {
	Name     string
	Variants []string // the first is the default; none: there is one way only
	Atomic   Atomic
	Open     func(Options) (Store, error)
	// Ask is its program "ask" (see bpf/ask.c), to be loaded with the store's maps.
	Ask func() (*ebpf.CollectionSpec, error)
}

var designs = map[string]Design{}

// Register adds a design; packages of designs call it from init.
func Register(d Design) {
	if _, taken := designs[d.Name]; taken {
		panic("store: two designs are called " + d.Name)
	}
	designs[d.Name] = d
}

// Designs are all that are registered, by name.
func Designs() []Design {
	var all []Design
	for _, name := range slices.Sorted(maps.Keys(designs)) {
		all = append(all, designs[name])
	}
	return all
}

// Lookup finds a design by "name" or "name:variant", which it puts into the options that it returns.
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

// Trait is how much of a change the design that Lookup finds shows at once: "whole per change". Empty where it finds
// none.
func Trait(text string) string {
	d, _, err := Lookup(text)
	if err != nil {
		return ""
	}
	return "whole " + d.Atomic.String()
}

// TooLarge is the error for a resource that a design cannot hold.
func TooLarge(name, format string, args ...any) error {
	return fault.New(fault.Usage, name, "make it smaller, or use another store", "%s", fmt.Sprintf(format, args...))
}
