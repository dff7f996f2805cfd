package ads

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Resource is one resource of any type, encoded once for all streams that get it. It is immutable. Make it with an
// Encoder.
type Resource struct {
	name, version string
	digest        digest
	delta, world  mem.Buffer // fields of delta and state-of-the-world responses; world is a slice of delta
	needs         []Need
}

// Name returns the name by which data planes subscribe to the resource.
func (r *Resource) Name() string { return r.name }

// Version returns a digest of the content: the same content has the same version in every process.
func (r *Resource) Version() string { return r.version }

type digest [16]byte

// versionBytes is how many bytes of the digest are in a version.
const versionBytes = 12

// Field numbers in discovery.proto of xDS v3. The resources of both variants, and the Any in a delta's Resource, have
// the same number, so one encoding serves both.
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

// Encoder makes resources. As long as a Resource is in use, encoding the same content again returns that Resource, so
// that data planes share its bytes wherever the message was made. The zero value is ready; it may be used
// concurrently.
type Encoder struct{ made shared[digest, Resource] }

// Resource encodes a message, and does not keep it.
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
	return e.made.of(d, func(*Resource) bool { return true }, func() *Resource {
		r := &Resource{name: name, version: hex.EncodeToString(d[:versionBytes]), digest: d, needs: NeedsOf(m)}
		r.encode(url, value)
		return r
	}), nil
}

// encode sets r.delta, the field of a delta response that holds the resource: a Resource with version, Any and name. It
// also sets r.world, which is the part of r.delta with the Any.
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

// TypeURL returns the URL with which data planes request messages of a type.
func TypeURL(m proto.Message) string {
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// NameOf returns the name of a resource: its name field, or cluster_name for endpoints.
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

// Table holds all resources of a type that a data plane gets: those of a base that many tables share, and its own. It
// is immutable, so that any number of views can share it, whole or as a base.
type Table struct {
	base    *Table      // a table without a base; nil: the table shares nothing
	list    []*Resource // its own, sorted by name; the base has none of the names
	sum     sum         // the sum of the digests of all resources, in base and in list
	version string      // a digest of the content
	step    atomic.Pointer[step]
}

var empty = newTable(nil, nil)

// sum is a sum of digests of resources, modulo 2^128. It does not depend on the order of the resources, and the digest
// of a replaced resource can be subtracted from it.
type sum struct{ high, low uint64 }

func (s sum) with(d digest) sum {
	var carry uint64
	s.low, carry = bits.Add64(s.low, binary.BigEndian.Uint64(d[8:]), 0)
	s.high, _ = bits.Add64(s.high, binary.BigEndian.Uint64(d[:8]), carry)
	return s
}

func (s sum) without(d digest) sum {
	var borrow uint64
	s.low, borrow = bits.Sub64(s.low, binary.BigEndian.Uint64(d[8:]), 0)
	s.high, _ = bits.Sub64(s.high, binary.BigEndian.Uint64(d[:8]), borrow)
	return s
}

func (s sum) version() string {
	var d digest
	binary.BigEndian.PutUint64(d[:], s.high)
	binary.BigEndian.PutUint64(d[8:], s.low)
	return hex.EncodeToString(d[:versionBytes])
}

// NewTable makes a table without a base; names must be unique.
func NewTable(list []*Resource) (*Table, error) { return (*Table)(nil).With(list) }

// With returns a table that has t as its base, and own as its own resources. t must have no base; names must be unique.
func (t *Table) With(own []*Resource) (*Table, error) {
	if len(own) == 0 && t != nil {
		return t, nil
	}
	own = slices.Clone(own)
	slices.SortFunc(own, byName)
	for i, r := range own {
		if i > 0 && r.name == own[i-1].name || t.Get(r.name) != nil {
			return nil, fmt.Errorf("resource %q is given twice", r.name)
		}
	}
	return newTable(t, own), nil
}

func byName(a, b *Resource) int { return strings.Compare(a.name, b.name) }

// newTable makes a table from a base, which may be nil, and a sorted list that has no name in common with the base.
func newTable(base *Table, list []*Resource) *Table {
	if base.Len() == 0 {
		base = nil
	}
	t := &Table{base: base, list: list}
	if base != nil {
		t.sum = base.sum
	}
	for _, r := range list {
		t.sum = t.sum.with(r.digest)
	}
	t.version = t.sum.version()
	return t
}

// Replace returns a copy of the table in which the resources of list replace those of the same names. All names must be
// in the table, and the table must have no base.
func (t *Table) Replace(list []*Resource) (*Table, error) {
	next := &Table{list: slices.Clone(t.list), sum: t.sum}
	for _, r := range list {
		i, found := find(next.list, r.name)
		if !found {
			return nil, fmt.Errorf("resource %q is not there to be replaced", r.name)
		}
		next.sum = next.sum.without(next.list[i].digest).with(r.digest)
		next.list[i] = r
	}
	next.version = next.sum.version()
	return next, nil
}

func find(list []*Resource, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(r *Resource, name string) int { return strings.Compare(r.name, name) })
}

// Get returns the resource of a name, or nil if there is none.
func (t *Table) Get(name string) *Resource {
	if t == nil {
		return nil
	}
	if i, found := find(t.list, name); found {
		return t.list[i]
	}
	return t.base.Get(name)
}

// Len returns the number of resources.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	return len(t.list) + t.base.Len()
}

// Version returns a digest of the content: the same content has the same version, however it is divided between the
// base and the table's own resources.
func (t *Table) Version() string {
	if t == nil {
		return empty.version
	}
	return t.version
}

// Same reports whether two tables have the same content and the same base, so either can replace the other.
func (t *Table) Same(o *Table) bool {
	return t == o || t != nil && o != nil && t.base == o.base && t.sum == o.sum && t.Len() == o.Len()
}

// Interned holds the tables that are in use, so that tables with the same content can share memory. The zero value is
// ready; it may be used concurrently.
type Interned struct{ made shared[internedKey, Table] }

type internedKey struct {
	url string
	sum sum
}

// Table returns the table with t's content that is already in use, or else t, which must have no base.
func (i *Interned) Table(url string, t *Table) *Table {
	return i.made.of(internedKey{url, t.sum}, t.Same, func() *Table { return t })
}

// all returns the table's resources, sorted by name. The list must not be changed.
func (t *Table) all() []*Resource {
	if t.base == nil {
		return t.list
	}
	return merged(t.base.list, t.list)
}

// merged merges two sorted lists. If one is empty, the result is the other list itself.
func merged(a, b []*Resource) []*Resource {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	out := make([]*Resource, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if byName(a[0], b[0]) <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// only returns a table with just the resources of some names, which must be sorted.
func (t *Table) only(names []string) *Table {
	var list []*Resource
	for _, name := range names {
		if r := t.Get(name); r != nil {
			list = append(list, r)
		}
	}
	return newTable(nil, list)
}

// step is the difference from an old table to a new one.
type step struct {
	to      *Table      // the new table
	changed []*Resource // resources of the new table that the old one lacks or has in another version
	removed []*Resource // resources of the old table that are not in the new one
	kept    *Table      // the new table plus the removed resources
}

// stepTo returns the difference between t and to. If neither table has a base, it caches the difference, because most
// streams take the same step.
func (t *Table) stepTo(to *Table) *step {
	switch {
	case t == to:
		return &step{to: to, kept: to}
	case t.Len() == 0:
		return &step{to: to, changed: to.all(), kept: to}
	case t.base != nil && to.base != nil:
		if s := t.partsTo(to); s != nil {
			return s
		}
	}
	if s := t.step.Load(); s != nil && s.to == to {
		return s
	}
	s := &step{to: to}
	s.changed, s.removed = compare(t.all(), to.all())
	s.keep(t, func() *Table { return newTable(nil, merged(to.all(), s.removed)) })
	if t.base == nil && to.base == nil {
		t.step.Store(s)
	}
	return s
}

// partsTo compares the bases, once for all tables that share them, and then the rest. It returns nil if a resource has
// moved between base and rest; the whole tables must then be compared.
func (t *Table) partsTo(to *Table) *step {
	common := t.base.stepTo(to.base)
	own := step{}
	own.changed, own.removed = compare(t.list, to.list)
	stays := func(r *Resource) bool { return to.Get(r.name) != nil }
	if slices.ContainsFunc(common.removed, stays) || slices.ContainsFunc(own.removed, stays) {
		return nil
	}
	s := &step{to: to, changed: merged(common.changed, own.changed), removed: merged(common.removed, own.removed)}
	s.keep(t, func() *Table { return newTable(common.kept, merged(to.list, own.removed)) })
	return s
}

// keep sets s.kept, the table with the current and the removed resources. If neither s.to nor the old table (from) is
// that table, keep calls both(), which must make it.
func (s *step) keep(from *Table, both func() *Table) {
	switch {
	case len(s.removed) == 0:
		s.kept = s.to
	case len(s.changed) == 0:
		s.kept = from
	default:
		s.kept = both()
	}
}

// compare compares sorted lists. changed are resources of the second that are new or have another version; removed are
// resources of the first that are not in the second.
func compare(from, to []*Resource) (changed, removed []*Resource) {
	i, j := 0, 0
	for i < len(from) || j < len(to) {
		switch order := compareAt(from, i, to, j); {
		case order == 0:
			if a, b := from[i], to[j]; a != b && a.version != b.version {
				changed = append(changed, b)
			}
			i, j = i+1, j+1
		case order < 0:
			removed = append(removed, from[i])
			i++
		default:
			changed = append(changed, to[j])
			j++
		}
	}
	return changed, removed
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
	return byName(a[i], b[j])
}
