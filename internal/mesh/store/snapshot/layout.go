package snapshot

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"tare/internal/mesh/store"
	"tare/internal/mesh/store/plan"
)

// The layout of a configuration in lines of 64 bytes. It is that of bpf/snapshot.h, with names and lengths in addition:
// only the writer reads those, to rebuild its bookkeeping after a failed change.
//
//	line 0    the root word, the seed of the hash, and two sizes
//	root      a line with the generation, then a directory of branches of slots, then one of branches of buckets
//	branch    two lines: 32 leaves
//	leaf      a line: 16 slots, each with a cluster's line; or a bucket: up to 7 listeners and the next bucket's line
//	cluster   half a line, which also has the line of its name, then its endpoints as an alias table
//	listener  a line, which also has the line of its name, then a line for each rule, then alias tables of clusters
//	name      its length, then its bytes
//
// In directories, branches and leaves, line 0 means none. Branches and leaves are small because a change copies one of
// each. The copies are the cost of the change, and the old lines cannot be reused until programs have left them.
//
// A cluster that listeners name but that does not exist also has a slot. The slot holds a cluster that has neither
// endpoints nor a number.
const (
	lineBytes = 64
	lineWords = 16
	maxLines  = 1 << 24 // a root word has 24 bits for a line

	branchLeaves  = 32
	branchLines   = branchLeaves / lineWords
	slotsPerLeaf  = lineWords
	bucketEntries = 7
	bucketLines   = 4

	denied  = 1<<32 - 1 // the count of a target that denies connections
	noID    = store.NoCluster
	any4    = 1 << 24 // flags of the root word
	any6    = 1 << 25
	genBits = 26 // where the generation begins in the root word

	maxName = 1 << 16 // bytes
)

// Offsets in line 0, in words.
const (
	superRoot      = 0
	superSeed      = 2
	superMask      = 4
	superListeners = 5
)

// rootGeneration is the offset of the generation, in words, in a root's first line, which holds nothing else.
const rootGeneration = 0

// Offsets in a cluster, in words, and other sizes and values.
const (
	clusterID       = 0
	clusterMax      = 1
	clusterCount    = 2
	clusterForm     = 3
	clusterLines    = 4
	clusterName     = 5
	clusterTable    = 8 // where endpoints begin
	endpoint4Words  = 4
	endpoint6Words  = 8
	endpointsOfIPv4 = 0
	endpointsOfIPv6 = 1
)

// Offsets in a listener, a rule and a name, in words.
const (
	listenerPort   = 4
	listenerRules  = 5
	listenerTarget = 6
	listenerLines  = 8
	listenerName   = 9
	shareWords     = 4

	ruleSource        = 0
	ruleDestination   = 4
	ruleRest          = 8
	rulePorts         = 9
	ruleTarget        = 11
	ruleFamilies      = 13
	sourceOfIPv6      = 1
	destinationOfIPv6 = 2

	nameLength = 0
	nameText   = 1
)

// words is the memory of lines, as 32-bit words.
type words []uint32

func wordsOf(mem []byte) words { return unsafe.Slice((*uint32)(unsafe.Pointer(&mem[0])), len(mem)/4) }

func (w words) bytes() []byte {
	if len(w) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 4*len(w))
}

func (w words) at(line, lines uint32) words {
	return w[line*lineWords : (line+lines)*lineWords : (line+lines)*lineWords]
}
func (w words) get64(i int) uint64    { return uint64(w[i]) | uint64(w[i+1])<<32 }
func (w words) put64(i int, v uint64) { w[i], w[i+1] = uint32(v), uint32(v>>32) }

// geometry holds the sizes of the map's parts.
type geometry struct {
	options store.Options
	lines   uint32 // in all
	// Numbers of leaves, rounded up to whole branches.
	slotLeaves, bucketLeaves uint32
}

// newGeometry sizes the map. It has room for twice the largest configuration that the options allow, because the old
// and the new configuration exist together during a replacement, and a reserve for changes made while the store waits
// for programs.
func newGeometry(o store.Options) geometry {
	// Listeners may name clusters that do not exist; they need slots too.
	slots := uint64(o.MaxClusters) + uint64(max(o.MaxClusters, o.MaxListeners))
	const whole = branchLeaves * slotsPerLeaf
	g := geometry{options: o, slotLeaves: uint32((slots + whole - 1) / whole * branchLeaves), bucketLeaves: branchLeaves}
	for uint64(g.bucketLeaves)*4 < uint64(o.MaxListeners) {
		g.bucketLeaves *= 2
	}
	trees := uint64(g.slotLeaves) + uint64(g.bucketLeaves)
	config := uint64(o.MaxEndpoints)/2 + 4*uint64(o.MaxClusters) + 5*uint64(o.MaxListeners) + trees +
		trees/branchLeaves*branchLines + uint64(g.rootLines())
	const reserve = 4 << 20 / lineBytes
	g.lines = uint32(min(1+2*config+reserve, maxLines+1))
	return g
}

// Each directory starts on a new line.
func (g *geometry) slotLines() uint32 { return directoryLines(g.slotLeaves) }
func (g *geometry) rootLines() uint32 { return g.listeners() + directoryLines(g.bucketLeaves) }
func (g *geometry) listeners() uint32 { return 1 + g.slotLines() } // line of the directory of buckets in a root
func (g *geometry) ids() uint32       { return 2 * g.options.MaxClusters }
func (g *geometry) slots() uint32     { return g.slotLeaves * slotsPerLeaf }
func (g *geometry) mask() uint32      { return g.bucketLeaves - 1 } // of buckets

func directoryLines(leaves uint32) uint32 { return (leaves/branchLeaves + lineWords - 1) / lineWords }

// key is the address of a listener as programs compare it.
type key struct {
	ip   [4]uint32
	port uint32 // network byte order; protocol in the upper half
}

func keyOf(a plan.Address) (k key) {
	for i := range k.ip {
		k.ip[i] = binary.LittleEndian.Uint32(a.IP[4*i:])
	}
	k.port = uint32(bits.ReverseBytes16(a.Port)) | uint32(a.Protocol)<<16
	return k
}

// address returns the address that keyOf encoded.
func (k *key) address() (a plan.Address) {
	for i, word := range k.ip {
		binary.LittleEndian.PutUint32(a.IP[4*i:], word)
	}
	a.Port, a.Protocol = bits.ReverseBytes16(uint16(k.port)), uint16(k.port>>16)
	return a
}

const mapped = 0xffff0000 // the third word of an IPv4-mapped address, in network byte order

// any returns the root word's flag if a listener at k accepts connections to any address of a family, and otherwise 0.
func (k *key) any() uint64 {
	switch k.ip {
	case [4]uint32{0, 0, mapped, 0}:
		return any4
	case [4]uint32{}:
		return any6
	}
	return 0
}

// hash returns the hash by which ss_search looks up a listener.
func (k *key) hash(seed uint64) uint64 {
	h := stir(seed, uint64(k.ip[0])|uint64(k.ip[1])<<32)
	h = stir(h, uint64(k.ip[2])|uint64(k.ip[3])<<32)
	return stir(stir(h, uint64(k.port)), 0)
}

func stir(h, with uint64) uint64 {
	h = (h ^ with) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

func nameLines(length int) uint32 { return uint32((4*nameText + length + lineBytes - 1) / lineBytes) }
