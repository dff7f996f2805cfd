package records

import "bytes"

// kind is a message as a reader sees it: where its pointers are.
type kind struct {
	strings  []int
	messages []pointer
	repeated []pointer
}

type pointer struct {
	at    int // of the key
	count int // of the number of elements, for a repeated field
	to    *kind
}

var (
	leaf        = &kind{}
	clusterKind = &kind{strings: []int{clusterName},
		messages: []pointer{{clusterBreakers, 0, leaf}, {clusterAssignment, 0, assignmentKind}}}
	listenerKind = &kind{
		strings:  []int{listenerName},
		messages: []pointer{{listenerAddress, 0, leaf}},
		repeated: []pointer{{listenerChainsKey, listenerChains, chainKind}, {listenerRulesKey, listenerRules, leaf}},
	}
	assignmentKind = &kind{strings: []int{assignmentName},
		repeated: []pointer{{assignmentLocalitiesKey, assignmentLocalities, localityKind}}}
	localityKind = &kind{repeated: []pointer{{localityEndpointsKey, localityEndpoints, endpointKind}}}
	endpointKind = &kind{messages: []pointer{{endpointAddress, 0, leaf}}}
	chainKind    = &kind{strings: []int{chainName}, repeated: []pointer{{chainFiltersKey, chainFilters, filterKind}}}
	filterKind   = &kind{strings: []int{filterName}, messages: []pointer{{filterConfig, 0, proxyKind}}}
	weightedKind = &kind{repeated: []pointer{{weightedClustersKey, weightedClusters, clusterWeightKind}}}
	// Which of two things a proxy's cluster is, its field proxyWhich says.
	proxyKind         = &kind{strings: []int{proxyStatPrefix}}
	clusterWeightKind = &kind{strings: []int{clusterWeightName}}
)

// Walker reads trees back. What it reads may be anything: a writer may have been killed while it wrote.
type Walker struct {
	Layout Layout
	// nil where there is no such record; valid until the next call of the same class
	Read func(key uint32, class Class) []byte
	Seen map[uint32]bool // keys of records that are in whole trees
}

// Cluster reads the tree that a cluster's value begins: its keys, its number and how many endpoints it has. ok is false
// where it is not whole: something is missing, or is in another tree too.
func (w *Walker) Cluster(top []byte) (keys []uint32, id uint32, endpoints int, ok bool) {
	if len(top) < TopSize {
		return nil, 0, 0, false
	}
	v := visit{w: w}
	ok = v.message(clusterKind, top) && get(top[clusterAssignment:]) != 0
	v.end(ok)
	return v.keys, get(top[clusterID:]), v.endpoints, ok
}

// Listener does the same for a listener; name is what it is called.
func (w *Walker) Listener(top []byte) (keys []uint32, name string, ok bool) {
	if len(top) < TopSize {
		return nil, "", false
	}
	v := visit{w: w}
	ok = v.message(listenerKind, top) && get(top[listenerAddress:]) != 0
	if text := w.Read(get(top[listenerName:]), String); text != nil {
		name = Text(text)
	} else {
		ok = false
	}
	v.end(ok)
	return v.keys, name, ok
}

// Text is the string in a record or in a cluster's key.
func Text(b []byte) string {
	b = b[:min(len(b), NameSize)]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

type visit struct {
	w         *Walker
	keys      []uint32
	endpoints int
}

// end forgets the records of a tree that is not whole.
func (v *visit) end(ok bool) {
	if !ok {
		for _, key := range v.keys {
			delete(v.w.Seen, key)
		}
	}
}

// record is the record of a key, or nil; each is visited once.
func (v *visit) record(key uint32, class Class) []byte {
	if v.w.Seen[key] {
		return nil
	}
	b := v.w.Read(key, class)
	if len(b) < v.w.Layout[class] {
		return nil
	}
	v.w.Seen[key] = true
	v.keys = append(v.keys, key)
	return bytes.Clone(b)
}

func (v *visit) message(k *kind, b []byte) bool {
	for _, at := range k.strings {
		if v.record(get(b[at:]), String) == nil {
			return false
		}
	}
	for _, p := range k.messages {
		if key := get(b[p.at:]); key != 0 && !v.visit(p.to, key) {
			return false
		}
	}
	for _, p := range k.repeated {
		if !v.elements(p, b) {
			return false
		}
	}
	if k != proxyKind {
		return true
	}
	switch get(b[proxyWhich:]) {
	case 0:
		return true
	case oneCluster:
		return v.record(get(b[proxyCluster:]), String) != nil
	case weightedCluster:
		return v.visit(weightedKind, get(b[proxyCluster:]))
	}
	return false
}

func (v *visit) visit(k *kind, key uint32) bool {
	b := v.record(key, Message)
	return b != nil && v.message(k, b)
}

func (v *visit) elements(p pointer, b []byte) bool {
	n := get(b[p.count:])
	if n == 0 {
		return true
	}
	if n > uint32(v.w.Layout.Slots()) {
		return false
	}
	array := v.record(get(b[p.at:]), Repeated)
	if array == nil {
		return false
	}
	if p.to == endpointKind {
		v.endpoints += int(n)
	}
	for i := range int(n) {
		if !v.visit(p.to, get(array[8*i:])) {
			return false
		}
	}
	return true
}
