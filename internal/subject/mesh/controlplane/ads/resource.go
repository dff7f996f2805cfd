package ads

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Resource is one resource of any type, encoded once for all streams that get it. It never changes. Make it with an
// Encoder.
type Resource struct {
	name, version string
	digest        digest
	delta, world  mem.Buffer // as a field of a response of either variant; world is a part of delta
	needs         []need
}

// Name is the name by which data planes subscribe to the resource.
func (r *Resource) Name() string { return r.name }

// Version is made of the content: the same content has the same version, in every process.
func (r *Resource) Version() string { return r.version }

type digest [16]byte

// versionBytes is how much of the digest a version shows.
const versionBytes = 12

// The numbers of fields in discovery.proto of xDS v3. That of resources is the same in both variants, and also that of
// the resource in its wrapper: so one encoding does for both.
const (
	fieldVersion   = 1
	fieldResources = 2
	fieldType      = 4
	fieldNonce     = 5
	fieldRemoved   = 6 // deltas

	resourceVersion = 1
	resourceAny     = 2
	resourceName    = 3

	anyType  = 1
	anyValue = 2
)

// Encoder makes resources. Two of the same content are the same Resource, for as long as anybody has it: data planes
// that are told the same share its bytes, whoever made the messages. The zero value is ready; it may be used by several
// goroutines.
type Encoder struct {
	mu   sync.Mutex
	made map[digest]weak.Pointer[Resource]
}

// Resource encodes a message. It is not needed any more afterwards.
func (e *Encoder) Resource(m proto.Message) (*Resource, error) {
	name, url := NameOf(m), TypeURL(m)
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding resource %q of %s: %w", name, url, err)
	}
	hash := sha256.New()
	hash.Write([]byte(url))
	hash.Write([]byte{0})
	hash.Write(value)
	d := digest(hash.Sum(nil)[:len(digest{})])
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.made[d].Value(); r != nil {
		return r, nil
	}
	r := &Resource{name: name, version: hex.EncodeToString(d[:versionBytes]), digest: d, needs: needsOf(m)}
	r.encode(url, value)
	if e.made == nil {
		e.made = map[digest]weak.Pointer[Resource]{}
	}
	e.made[d] = weak.Make(r)
	runtime.AddCleanup(r, e.forget, d)
	return r, nil
}

// forget drops what nobody has any more, unless it was made again.
func (e *Encoder) forget(d digest) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.made[d].Value() == nil {
		delete(e.made, d)
	}
}

// encode makes the field of a delta response: a Resource with version, Any and name.
func (r *Resource) encode(url string, value []byte) {
	field := func(number protowire.Number, length int) int {
		return protowire.SizeTag(number) + protowire.SizeBytes(length)
	}
	inner := field(anyType, len(url)) + field(anyValue, len(value))
	outer := field(resourceVersion, len(r.version)) + field(resourceAny, inner) + field(resourceName, len(r.name))
	b := make([]byte, 0, field(fieldResources, outer))
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldResources, protowire.BytesType), uint64(outer))
	b = appendString(b, resourceVersion, r.version)
	from := len(b)
	b = protowire.AppendVarint(protowire.AppendTag(b, resourceAny, protowire.BytesType), uint64(inner))
	b = appendString(b, anyType, url)
	b = protowire.AppendBytes(protowire.AppendTag(b, anyValue, protowire.BytesType), value)
	to := len(b)
	b = appendString(b, resourceName, r.name)
	r.delta, r.world = mem.SliceBuffer(b), mem.SliceBuffer(b[from:to:to])
}

func appendString(b []byte, number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

// TypeURL is by what data planes ask for messages of a type.
func TypeURL(m proto.Message) string {
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// NameOf is the name of a resource: its field name, but for endpoints.
func NameOf(m proto.Message) string {
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName()
	case *clusterv3.Cluster:
		return m.GetName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}

// Table is all resources of a type that a data plane is told. It never changes, so that any number of views can share
// it.
type Table struct {
	list    []*Resource // by name
	version string      // made of the content
	step    atomic.Pointer[step]
}

var empty = newTable(nil)

// NewTable makes a table; no two resources may have the same name.
func NewTable(list []*Resource) (*Table, error) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *Resource) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(list); i++ {
		if list[i].name == list[i-1].name {
			return nil, fmt.Errorf("resource %q is given twice", list[i].name)
		}
	}
	return newTable(list), nil
}

// newTable makes a table of a list that is in order. Its version is a sum, in which the order does not matter.
func newTable(list []*Resource) *Table {
	var high, low, carry uint64
	for _, r := range list {
		low, carry = bits.Add64(low, binary.BigEndian.Uint64(r.digest[8:]), 0)
		high, _ = bits.Add64(high, binary.BigEndian.Uint64(r.digest[:8]), carry)
	}
	var d digest
	binary.BigEndian.PutUint64(d[:], high)
	binary.BigEndian.PutUint64(d[8:], low)
	return &Table{list: list, version: hex.EncodeToString(d[:versionBytes])}
}

// Replace is the table with other resources in the places of those of the same names, all of which must be there.
func (t *Table) Replace(list []*Resource) (*Table, error) {
	next := slices.Clone(t.list)
	for _, r := range list {
		i, found := t.find(r.name)
		if !found {
			return nil, fmt.Errorf("resource %q is not there to be replaced", r.name)
		}
		next[i] = r
	}
	return newTable(next), nil
}

func (t *Table) find(name string) (int, bool) {
	return slices.BinarySearchFunc(t.list, name, func(r *Resource, name string) int {
		return strings.Compare(r.name, name)
	})
}

// Get is the resource of a name, nil where there is none.
func (t *Table) Get(name string) *Resource {
	if t == nil {
		return nil
	}
	if i, found := t.find(name); found {
		return t.list[i]
	}
	return nil
}

// Len is how many resources there are.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	return len(t.list)
}

// Version is made of the content: the same content has the same version.
func (t *Table) Version() string {
	if t == nil {
		return empty.version
	}
	return t.version
}

// only is the table of those of its resources that have one of some names, which are in order.
func (t *Table) only(names []string) *Table {
	var list []*Resource
	for _, name := range names {
		if r := t.Get(name); r != nil {
			list = append(list, r)
		}
	}
	return newTable(list)
}

// step is what leads from one table to another.
type step struct {
	to      *Table
	changed []*Resource // in to, new or of another version
	removed []*Resource // not in to
	kept    *Table      // to, with what it removes
}

// stepTo compares tables. The last result is kept: most streams that have one table are to have the same next.
func (t *Table) stepTo(to *Table) *step {
	if len(t.list) == 0 {
		return &step{to: to, changed: to.list, kept: to}
	}
	if s := t.step.Load(); s != nil && s.to == to {
		return s
	}
	s := &step{to: to}
	i, j := 0, 0
	for i < len(t.list) || j < len(to.list) {
		switch order := compareAt(t.list, i, to.list, j); {
		case order == 0:
			if a, b := t.list[i], to.list[j]; a != b && a.version != b.version {
				s.changed = append(s.changed, b)
			}
			i, j = i+1, j+1
		case order < 0:
			s.removed = append(s.removed, t.list[i])
			i++
		default:
			s.changed = append(s.changed, to.list[j])
			j++
		}
	}
	switch {
	case len(s.removed) == 0:
		s.kept = to
	case len(s.changed) == 0:
		s.kept = t
	default:
		all := append(slices.Clone(to.list), s.removed...)
		slices.SortFunc(all, func(a, b *Resource) int { return strings.Compare(a.name, b.name) })
		s.kept = newTable(all)
	}
	t.step.Store(s)
	return s
}

func compareAt(a []*Resource, i int, b []*Resource, j int) int {
	switch {
	case i == len(a):
		return 1
	case j == len(b):
		return -1
	case a[i] == b[j]:
		return 0
	}
	return strings.Compare(a[i].name, b[j].name)
}
