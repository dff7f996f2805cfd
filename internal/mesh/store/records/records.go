// Package records turns a mesh configuration into trees of records, as Kmesh does. Each message of the configuration
// becomes a record as large as the message's protobuf-c struct, each string a record of 192 bytes, and each repeated
// field an array of pointers. The key of a record replaces each pointer to it. The package also determines the order of
// the writes that put a tree into maps. It only computes; stores do the writes. Which records are written, and how
// often, is the same as in Kmesh. The layout is Tare's own (bpf/records.h). Where a key is not known yet, the record
// has 0; Kmesh writes an address in its daemon's memory there.
//
// Kmesh's records lack three things that these have: sums of effective weights next to the keys of localities,
// endpoints and weighted clusters, so that programs can choose by weight; a cluster's number, in the cluster's record;
// and the rules that select filter chains, if there are any, as separate records (struct rec_rule).
package records

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"tare/internal/mesh"
	"tare/internal/mesh/store/plan"
)

// Class is a size class of records.
type Class uint8

// The classes, numbered as in keys. Large is for messages above 64 bytes, which no supported configuration has.
const (
	Message  Class = iota // 64 bytes, in the layout Sized
	String                // 192 bytes
	Large                 // 296 bytes
	Repeated              // 1600 bytes
	Classes  = 4
)

// Layout is the size of the records of each class, in bytes.
type Layout [Classes]int

// The layouts: Sized has Kmesh's current sizes by class, and Single has one size for all, as when Kmesh's records were
// maps.
var (
	Sized  = Layout{64, 192, 296, 1600}
	Single = Layout{1300, 1300, 1300, 1300}
)

// Slots returns the maximum number of elements of a repeated field.
func (l Layout) Slots() int { return l[Repeated] / 8 }

// A tree begins in the top: the map value of its listener or cluster. TopSize is the size of that value; AddressSize
// and NameSize are the sizes of the keys of listeners and clusters. Like any other record, the top is written whenever
// one of its pointers is set.
const (
	TopSize     = 64
	AddressSize = 40
	NameSize    = 192
)

// Counts holds numbers of records by class.
type Counts [Classes]int

// Sum returns the number of records of all classes.
func (c Counts) Sum() int { return c[Message] + c[String] + c[Large] + c[Repeated] }

// Step is one step in making a tree visible to programs: the key of Child is stored in Record, and then Record is
// written to its map if Write is set.
type Step struct {
	Record int32 // 0 is the top
	Child  int32 // 0: no child
	At     int32 // position of Child's key in Record
	Write  bool
	Last   bool // this write completes Record
}

// Tree is a listener or a cluster as a tree of records. It can be reused. Layout must be set before the first use.
type Tree struct {
	Layout Layout
	Steps  []Step
	Counts Counts // numbers of records, without the top

	data    []byte
	records []record
	targets []mesh.Target
	weights []uint32
}

type record struct {
	at    int32 // index in Tree.data
	class Class
}

// Len returns the number of records, including the top.
func (t *Tree) Len() int { return len(t.records) }

// Class returns the class of a record other than the top.
func (t *Tree) Class(record int32) Class { return t.records[record].class }

// Bytes returns the content of a record, with the keys that SetKey has stored so far. It is valid until another tree is
// built in t.
func (t *Tree) Bytes(record int32) []byte {
	r := t.records[record]
	size := TopSize
	if record > 0 {
		size = t.Layout[r.class]
	}
	return t.data[r.at : int(r.at)+size : int(r.at)+size]
}

// SetKey stores the key of a step's Child in the step's Record.
func (t *Tree) SetKey(s *Step, key uint32) { put(t.Bytes(s.Record)[s.At:], key) }

// SetID changes the cluster's number in the tree of a cluster.
func (t *Tree) SetID(id uint32) { put(t.data[clusterID:], id) }

func put(b []byte, v uint32) { binary.NativeEndian.PutUint32(b, v) }

// Offsets in the structs of bpf/records.h.
const (
	listenerFirst     = 0
	listenerRules     = 4
	listenerRulesKey  = 8
	listenerName      = 24
	listenerAddress   = 32
	listenerChains    = 40
	listenerChainsKey = 48

	ruleSource      = 0
	ruleDestination = 16
	rulePorts       = 32
	ruleBits        = 40
	ruleFlags       = 42
	ruleChain       = 44

	chainFilters    = 32
	chainFiltersKey = 40
	chainName       = 48

	filterName   = 24
	filterWhich  = 32
	filterConfig = 40
	tcpProxy     = 2 // field number

	proxyStatPrefix = 24
	proxyAttempts   = 32
	proxyWhich      = 36
	proxyCluster    = 40
	oneCluster      = 2 // field numbers
	weightedCluster = 10

	weightedClusters    = 24
	weightedClustersKey = 32
	clusterWeightName   = 24
	clusterWeightWeight = 32

	clusterID         = 0
	clusterName       = 24
	clusterTimeout    = 32
	clusterPolicy     = 36
	clusterBreakers   = 40
	clusterAssignment = 48

	breakersMax = 28 // max_connections, pending, requests, retries

	assignmentName          = 24
	assignmentLocalities    = 32
	assignmentLocalitiesKey = 40

	localityEndpoints    = 24
	localityEndpointsKey = 32
	localityWeight       = 40
	localityPriority     = 44

	endpointAddress = 24

	addressIP       = 0
	addressProtocol = 24
	addressPort     = 28
	addressIPv4     = 32
)

// Flags of a rule's source. The flags of its destination are one bit higher.
const (
	sourceGiven = 1
	sourceIPv6  = 4
)

func (t *Tree) reset() {
	t.Steps, t.data, t.records, t.Counts = t.Steps[:0], t.data[:0], t.records[:0], Counts{}
	t.grow(TopSize, 0)
}

func (t *Tree) grow(size int, class Class) int32 {
	at := len(t.data)
	if at+size > cap(t.data) {
		t.data = append(make([]byte, 0, 2*(at+size)), t.data...)
	}
	t.data = t.data[:at+size]
	clear(t.data[at:])
	t.records = append(t.records, record{int32(at), class})
	return int32(len(t.records) - 1)
}

// child adds a record, and a pointer to it at the given offset in the parent. The parent is written, with the child's
// key, before the child.
func (t *Tree) child(parent int32, at int, class Class) int32 {
	r := t.grow(t.Layout[class], class)
	t.Counts[class]++
	t.Steps = append(t.Steps, Step{Record: parent, Child: r, At: int32(at), Write: true})
	return r
}

// element adds a record to which a repeated field points. The field is written after all of its elements.
func (t *Tree) element(array int32, i int) int32 {
	r := t.grow(t.Layout[Message], Message)
	t.Counts[Message]++
	t.Steps = append(t.Steps, Step{Record: array, Child: r, At: int32(8 * i)})
	return r
}

// upto sets the sum of weights up to and including that of element i, next to the element's key.
func (t *Tree) upto(array int32, i int, sum uint32) { put(t.Bytes(array)[8*i+4:], sum) }

// repeated adds the array of a repeated field of n elements. A field without elements has no array; repeated then
// returns 0.
func (t *Tree) repeated(parent int32, count, at, n int, what string) (array int32, err error) {
	if n == 0 {
		return 0, nil
	}
	if n > t.Layout.Slots() {
		return 0, fmt.Errorf("it has %d %s; a repeated field has room for %d", n, what, t.Layout.Slots())
	}
	put(t.Bytes(parent)[count:], uint32(n))
	return t.child(parent, at, Repeated), nil
}

// whole adds the step that writes a complete record.
func (t *Tree) whole(record int32) {
	t.Steps = append(t.Steps, Step{Record: record, Write: true, Last: true})
}

// text adds a record for a string. An empty string has a record as well, because protobuf-c points to one.
func (t *Tree) text(parent int32, at int, s string) error {
	if len(s) >= NameSize {
		return fmt.Errorf("it has a name of %d bytes; a string has room for %d", len(s), NameSize-1)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("the name %q has a zero byte", s)
	}
	r := t.child(parent, at, String)
	copy(t.Bytes(r), s)
	t.whole(r)
	return nil
}

// Cluster builds the tree of a cluster in t.
func (t *Tree) Cluster(c *mesh.Cluster, id uint32) error {
	t.reset()
	const top = 0
	if c.Name == "" {
		return fmt.Errorf("it has no name")
	}
	b := t.Bytes(top)
	put(b[clusterID:], id)
	put(b[clusterTimeout:], uint32(c.ConnectTimeout.Milliseconds()))
	put(b[clusterPolicy:], uint32(c.Policy))
	if err := t.text(top, clusterName, c.Name); err != nil {
		return err
	}
	if c.Breakers != (mesh.Breakers{}) {
		r := t.child(top, clusterBreakers, Message)
		b := t.Bytes(r)
		for i, v := range [...]uint32{c.Breakers.MaxConnections, c.Breakers.MaxPending, c.Breakers.MaxRequests,
			c.Breakers.MaxRetries} {
			put(b[breakersMax+4*i:], v)
		}
		t.whole(r)
	}
	if err := t.assignment(top, c); err != nil {
		return err
	}
	t.whole(top)
	return nil
}

func (t *Tree) assignment(top int32, c *mesh.Cluster) error {
	r := t.child(top, clusterAssignment, Message)
	if err := t.text(r, assignmentName, c.Name); err != nil {
		return err
	}
	array, err := t.repeated(r, assignmentLocalities, assignmentLocalitiesKey, len(c.Localities), "localities")
	if err != nil {
		return err
	}
	t.targets = c.Targets(t.targets[:0])
	t.weights = t.weights[:0]
	for i := range t.targets {
		t.weights = append(t.weights, t.targets[i].Weight)
	}
	fit(t.weights)
	next, sum := 0, uint32(0)
	for i := range c.Localities {
		l := &c.Localities[i]
		e := t.element(array, i)
		b := t.Bytes(e)
		put(b[localityWeight:], l.Weight)
		put(b[localityPriority:], l.Priority)
		endpoints, err := t.repeated(e, localityEndpoints, localityEndpointsKey, len(l.Endpoints),
			"endpoints in one locality")
		if err != nil {
			return err
		}
		within := uint32(0)
		for j := range l.Endpoints {
			// Targets are a subsequence of the endpoints. If an endpoint is in two localities, and one of the two gets no
			// connections, the first locality may get the weight of the other. The endpoint's share of connections is right in
			// any case.
			if next < len(t.targets) && t.targets[next].Address == l.Endpoints[j].Address && l.Endpoints[j].Usable() {
				within += t.weights[next]
				next++
			}
			t.endpoint(endpoints, j, &l.Endpoints[j])
			t.upto(endpoints, j, within)
		}
		if endpoints != 0 {
			t.whole(endpoints)
		}
		sum += within
		t.upto(array, i, sum)
		t.whole(e)
	}
	if array != 0 {
		t.whole(array)
	}
	t.whole(r)
	return nil
}

func (t *Tree) endpoint(array int32, i int, e *mesh.Endpoint) {
	r := t.element(array, i)
	address := t.child(r, endpointAddress, Message)
	at := plan.Address{IP: e.Address.Addr().As16(), Port: e.Address.Port(), Protocol: uint16(mesh.TCP)}
	t.address(address, at)
	t.whole(r)
}

func (t *Tree) address(record int32, at plan.Address) {
	b := t.Bytes(record)
	PutKey(b, at)
	copy(b[addressIPv4:addressIPv4+4], at.IP[12:])
	t.whole(record)
}

// fit scales weights down if their sum does not fit into 32 bits.
func fit(weights []uint32) {
	sum := uint64(0)
	for _, w := range weights {
		sum += uint64(w)
	}
	if sum < 1<<32 {
		return
	}
	for i, w := range weights {
		if w > 0 {
			weights[i] = max(1, uint32(float64(w)/float64(sum)*(1<<31)))
		}
	}
}

// PutKey writes the key of a listener, its address, to key.
func PutKey(key []byte, at plan.Address) {
	clear(key[copy(key[addressIP:], at.IP[:]):AddressSize])
	put(key[addressProtocol:], uint32(at.Protocol))
	put(key[addressPort:], uint32(at.Port))
}

// Listener builds the tree of a listener and its rules (mesh.Listener.Rules) in t.
func (t *Tree) Listener(l *mesh.Listener, rules []mesh.Rule) error {
	t.reset()
	const top = 0
	if err := t.text(top, listenerName, l.Name); err != nil {
		return err
	}
	address := t.child(top, listenerAddress, Message)
	t.address(address, plan.AddressOf(l))
	n := len(l.Chains)
	if l.Default != nil {
		n++
	}
	chains, err := t.repeated(top, listenerChains, listenerChainsKey, n, "filter chains")
	if err != nil {
		return err
	}
	for i := range n {
		if err := t.chain(chains, i, l.Chain(i)); err != nil {
			return err
		}
	}
	if chains != 0 {
		t.whole(chains)
	}
	if err := t.rules(top, rules); err != nil {
		return err
	}
	t.whole(top)
	return nil
}

// rules adds the rules that select chains. If the first rule matches every connection, it only sets the chain of that
// rule in the top.
func (t *Tree) rules(top int32, rules []mesh.Rule) error {
	if len(rules) > 0 && rules[0].MatchesAll() && rules[0].Chain >= 0 {
		put(t.Bytes(top)[listenerFirst:], uint32(rules[0].Chain)+1)
		return nil
	}
	array, err := t.repeated(top, listenerRules, listenerRulesKey, len(rules), "rules")
	if err != nil {
		return err
	}
	for i := range rules {
		rule := &rules[i]
		r := t.element(array, i)
		b := t.Bytes(r)
		source := putPrefix(b[ruleSource:], &b[ruleBits], rule.Source)
		b[ruleFlags] = source | putPrefix(b[ruleDestination:], &b[ruleBits+1], rule.Destination)<<1
		for i, p := range [...]uint16{rule.SourcePorts.From, rule.SourcePorts.To, rule.DestinationPorts.From,
			rule.DestinationPorts.To} {
			binary.NativeEndian.PutUint16(b[rulePorts+2*i:], p)
		}
		put(b[ruleChain:], uint32(rule.Chain+1))
		t.whole(r)
	}
	if array != 0 {
		t.whole(array)
	}
	return nil
}

// putPrefix writes a prefix, with IPv4 mapped to IPv6, and the prefix's length. It returns the flags for a source.
func putPrefix(to []byte, bits *byte, p netip.Prefix) (flags byte) {
	if !p.IsValid() {
		return 0
	}
	ip := p.Addr().As16()
	copy(to, ip[:])
	if p.Addr().Is4() {
		*bits = byte(p.Bits() + 96)
		return sourceGiven
	}
	*bits = byte(p.Bits())
	return sourceGiven | sourceIPv6
}

func (t *Tree) chain(array int32, i int, c *mesh.Chain) error {
	r := t.element(array, i)
	filters, err := t.repeated(r, chainFilters, chainFiltersKey, 1, "filters")
	if err != nil {
		return err
	}
	filter := t.element(filters, 0)
	put(t.Bytes(filter)[filterWhich:], tcpProxy)
	if err := t.text(filter, filterName, ""); err != nil {
		return err
	}
	if err := t.proxy(filter, &c.Proxy); err != nil {
		return err
	}
	t.whole(filter)
	t.whole(filters)
	if err := t.text(r, chainName, c.Name); err != nil {
		return err
	}
	t.whole(r)
	return nil
}

func (t *Tree) proxy(filter int32, p *mesh.Proxy) error {
	r := t.child(filter, filterConfig, Message)
	put(t.Bytes(r)[proxyAttempts:], p.MaxConnectAttempts)
	if err := t.text(r, proxyStatPrefix, p.StatPrefix); err != nil {
		return err
	}
	switch {
	case len(p.Clusters) == 1 && p.Clusters[0].Weight > 0:
		put(t.Bytes(r)[proxyWhich:], oneCluster)
		if err := t.text(r, proxyCluster, p.Clusters[0].Name); err != nil {
			return err
		}
	case len(p.Clusters) > 0:
		put(t.Bytes(r)[proxyWhich:], weightedCluster)
		if err := t.weighted(r, p); err != nil {
			return err
		}
	}
	t.whole(r)
	return nil
}

func (t *Tree) weighted(proxy int32, p *mesh.Proxy) error {
	r := t.child(proxy, proxyCluster, Message)
	array, err := t.repeated(r, weightedClusters, weightedClustersKey, len(p.Clusters), "weighted clusters")
	if err != nil {
		return err
	}
	t.weights = t.weights[:0]
	for i := range p.Clusters {
		t.weights = append(t.weights, p.Clusters[i].Weight)
	}
	fit(t.weights)
	sum := uint32(0)
	for i := range p.Clusters {
		e := t.element(array, i)
		put(t.Bytes(e)[clusterWeightWeight:], p.Clusters[i].Weight)
		if err := t.text(e, clusterWeightName, p.Clusters[i].Name); err != nil {
			return err
		}
		t.whole(e)
		sum += t.weights[i]
		t.upto(array, i, sum)
	}
	t.whole(array)
	t.whole(r)
	return nil
}
