package snapshot

import (
	"errors"
	"fmt"
	"math"
)

// contents is what a configuration in lines comes to.
type contents struct {
	generation                   uint64
	root                         uint32 // 0: there is none
	clusters                     []heldCluster
	listeners                    []heldListener
	slotBranches, slotLeaves     []uint32 // lines
	bucketBranches, bucketLeaves []uint32
	taken                        []bool // by line: in a tree, or line 0
}

type heldCluster struct {
	name                 string
	slot, id             uint32 // id is noID where the cluster does not exist
	line, lines, endsAt  uint32 // endsAt: line of the name
	endpoints, nameLines uint32
}

type heldListener struct {
	name             string
	key              key
	line, lines      uint32
	nameAt, nameRows uint32
	uses             []uint32 // slots
}

// decode reads the configuration that a map holds. It trusts nothing: every line belongs to one object alone, every
// object is whole by its check, and what one says of another is so. It looks at each line once at most.
func decode(m words, g *geometry) (*contents, error) {
	if len(m) < lineWords || len(m) != int(g.lines)*lineWords {
		return nil, fmt.Errorf("it has %d lines instead of %d", len(m)/lineWords, g.lines)
	}
	d := &decoder{m: m, g: g, seed: m.get64(superSeed), contents: &contents{
		slotBranches: make([]uint32, g.slotLeaves/branchLeaves), slotLeaves: make([]uint32, g.slotLeaves),
		bucketBranches: make([]uint32, g.bucketLeaves/branchLeaves), bucketLeaves: make([]uint32, g.bucketLeaves),
		taken: make([]bool, g.lines)}}
	d.taken[0] = true
	if err := d.root(); err != nil {
		return nil, err
	}
	return d.contents, nil
}

type decoder struct {
	*contents
	m    words
	g    *geometry
	seed uint64
	slot []int32 // by slot: index into clusters, or -1
}

// claim takes lines for one object.
func (d *decoder) claim(line, lines uint32, what string) (words, error) {
	if line == 0 || lines == 0 || uint64(line)+uint64(lines) > uint64(len(d.taken)) {
		return nil, fmt.Errorf("%s at line %d with %d lines is outside of the map", what, line, lines)
	}
	for i := line; i < line+lines; i++ {
		if d.taken[i] {
			return nil, fmt.Errorf("%s at line %d shares line %d with something else", what, line, i)
		}
		d.taken[i] = true
	}
	return d.m.at(line, lines), nil
}

// whole claims an object that says itself how many lines it has, and checks it.
func (d *decoder) whole(line uint32, length, check int, what string) (words, error) {
	if line == 0 || line >= uint32(len(d.taken)) {
		return nil, fmt.Errorf("%s at line %d is outside of the map", what, line)
	}
	w, err := d.claim(line, d.m[line*lineWords+uint32(length)], what)
	if err != nil {
		return nil, err
	}
	if w[check] != w.check(check) {
		return nil, fmt.Errorf("%s at line %d is damaged", what, line)
	}
	return w, nil
}

func (d *decoder) root() error {
	word := d.m.get64(superRoot)
	line := uint32(word & (maxLines - 1))
	if d.contents.root = line; line == 0 {
		return nil
	}
	w, err := d.claim(line, d.g.rootLines(), "the root")
	if err != nil {
		return err
	}
	head := w[:lineWords]
	d.generation = head.get64(rootGeneration)
	if head[rootMagic] != magic || head[rootCheck] != head.check(rootCheck) || head[rootLines] != d.g.rootLines() ||
		d.generation<<genBits>>genBits != word>>genBits {
		return fmt.Errorf("the root at line %d is damaged", line)
	}
	copy(d.slotBranches, w[lineWords:])
	copy(d.bucketBranches, w[d.g.listeners()*lineWords:])
	if err := errors.Join(d.branches(d.slotBranches, d.slotLeaves),
		d.branches(d.bucketBranches, d.bucketLeaves)); err != nil {
		return err
	}
	if err := d.allClusters(head); err != nil {
		return err
	}
	return d.allListeners(head, word)
}

// branches reads which leaves there are.
func (d *decoder) branches(branches, leaves []uint32) error {
	for i, line := range branches {
		if line == 0 {
			continue
		}
		w, err := d.claim(line, branchLines, "a branch")
		if err != nil {
			return err
		}
		copy(leaves[i*branchLeaves:], w)
	}
	return nil
}

func (d *decoder) allClusters(head words) error {
	d.slot = make([]int32, d.g.slots())
	names := map[string]bool{}
	ids := make([]bool, d.g.ids())
	sum, defined := uint64(0), uint32(0)
	for i := range d.slot {
		d.slot[i] = -1
	}
	for i, leaf := range d.slotLeaves {
		if leaf == 0 {
			continue
		}
		w, err := d.claim(leaf, 1, "a leaf of slots")
		if err != nil {
			return err
		}
		for j, line := range w {
			if line == 0 {
				continue
			}
			slot := uint32(i*slotsPerLeaf + j)
			c, err := d.cluster(line, slot)
			if err != nil {
				return err
			}
			switch {
			case names[c.name]:
				return fmt.Errorf("two clusters are called %q", c.name)
			case c.id == noID && c.endpoints > 0, c.id != noID && (c.id >= uint32(len(ids)) || ids[c.id]):
				return fmt.Errorf("cluster %q has the number %d", c.name, c.id)
			case c.id != noID:
				ids[c.id] = true
				defined++
			}
			names[c.name] = true
			sum += mark(slot, line)
			d.slot[slot] = int32(len(d.clusters))
			d.clusters = append(d.clusters, c)
		}
	}
	if sum != head.get64(rootSlotSum) || head[rootDefined] != defined || head[rootSlots] != uint32(len(d.clusters)) {
		return errors.New("clusters are missing, or are not those of the root")
	}
	return nil
}

func (d *decoder) cluster(line, slot uint32) (c heldCluster, err error) {
	w, err := d.whole(line, clusterLines, clusterCheck, "a cluster")
	if err != nil {
		return c, err
	}
	c = heldCluster{slot: slot, id: w[clusterID], line: line, lines: w[clusterLines], endsAt: w[clusterName],
		endpoints: w[clusterCount]}
	table := w[clusterTable:]
	size := uint64(endpoint4Words)
	if w[clusterForm] == endpointsOfIPv6 {
		size = endpoint6Words
	}
	if w[clusterSlot] != slot || w[clusterForm] > endpointsOfIPv6 || uint64(c.endpoints)*size > uint64(len(table)) {
		return c, fmt.Errorf("the cluster at line %d is none of slot %d", line, slot)
	}
	if w[clusterForm] == endpointsOfIPv6 {
		for i := range c.endpoints {
			if table[i*endpoint6Words+6] >= c.endpoints {
				return c, fmt.Errorf("endpoint %d of the cluster at line %d is none", i, line)
			}
		}
	}
	c.name, c.nameLines, err = d.text(c.endsAt)
	return c, err
}

func (d *decoder) text(line uint32) (string, uint32, error) {
	if line == 0 || line >= uint32(len(d.taken)) {
		return "", 0, fmt.Errorf("a name at line %d is outside of the map", line)
	}
	n := d.m[line*lineWords+nameLength]
	if n > maxName {
		return "", 0, fmt.Errorf("the name at line %d has %d bytes", line, n)
	}
	lines := nameLines(int(n))
	w, err := d.claim(line, lines, "a name")
	if err != nil {
		return "", 0, err
	}
	if w[nameCheck] != w.check(nameCheck) {
		return "", 0, fmt.Errorf("the name at line %d is damaged", line)
	}
	return string(w[nameText:].bytes()[:n]), lines, nil
}

func nameLines(length int) uint32 { return uint32((4*nameText + length + lineBytes - 1) / lineBytes) }

func (d *decoder) allListeners(head words, word uint64) error {
	names := map[string]bool{}
	keys := map[key]bool{}
	sum := uint64(0)
	var unspecified [2]uint32
	for i, leaf := range d.bucketLeaves {
		if leaf == 0 {
			continue
		}
		b, err := d.claim(leaf, 1, "a bucket")
		if err != nil {
			return err
		}
		for n := 1; ; n++ {
			for e := range bucketEntries {
				line, tag := b[2*e], b[2*e+1]
				if line == 0 {
					break
				}
				l, err := d.listener(line)
				if err != nil {
					return err
				}
				hash := l.key.hash(d.seed)
				if uint32(hash>>32) != tag || uint32(hash)&d.g.mask() != uint32(i) {
					return fmt.Errorf("listener %q is not where programs look for it", l.name)
				}
				if names[l.name] || keys[l.key] {
					return fmt.Errorf("there is another listener with the name or the address of %q", l.name)
				}
				names[l.name], keys[l.key] = true, true
				switch l.key.any() {
				case any4:
					unspecified[0]++
				case any6:
					unspecified[1]++
				}
				sum += mark(tag, line)
				d.listeners = append(d.listeners, l)
			}
			more := b[2*bucketEntries]
			if more == 0 {
				break
			}
			if n == bucketLines {
				return fmt.Errorf("the bucket at line %d is too long", leaf)
			}
			if b, err = d.claim(more, 1, "a bucket"); err != nil {
				return err
			}
		}
	}
	if sum != head.get64(rootBucketSum) || head[rootListeners] != uint32(len(d.listeners)) ||
		head[rootAny] != unspecified[0] || head[rootAny+1] != unspecified[1] ||
		(word&any4 != 0) != (unspecified[0] > 0) || (word&any6 != 0) != (unspecified[1] > 0) {
		return errors.New("listeners are missing, or are not those of the root")
	}
	return nil
}

func (d *decoder) listener(line uint32) (l heldListener, err error) {
	w, err := d.whole(line, listenerLines, listenerCheck, "a listener")
	if err != nil {
		return l, err
	}
	l = heldListener{key: key{ip: [4]uint32(w[:4]), port: w[listenerPort]}, line: line, lines: w[listenerLines],
		nameAt: w[listenerName]}
	rules := w[listenerRules]
	if uint64(rules) >= uint64(l.lines) {
		return l, fmt.Errorf("the listener at line %d has %d rules in %d lines", line, rules, l.lines)
	}
	targets := []uint32{w[listenerTarget], w[listenerTarget+1]}
	for i := range rules {
		r := w.at(1+i, 1)
		targets = append(targets, r[ruleTarget], r[ruleTarget+1])
	}
	for i := 0; i < len(targets); i += 2 {
		count, where := targets[i], targets[i+1]
		switch {
		case count == 0, count == denied:
		case count == 1:
			l.uses = append(l.uses, where)
		case where > rules && uint64(where)*lineWords+uint64(count)*shareWords <= uint64(len(w)):
			for _, s := range shares(w[where*lineWords:], count) {
				if s.other >= uint32(len(d.slot)) || d.slot[s.other] < 0 {
					return l, fmt.Errorf("the listener at line %d names no cluster with slot %d", line, s.other)
				}
				l.uses = append(l.uses, s.own)
			}
		default:
			return l, fmt.Errorf("a table of the listener at line %d is outside of it", line)
		}
	}
	for _, slot := range l.uses {
		if slot >= uint32(len(d.slot)) || d.slot[slot] < 0 {
			return l, fmt.Errorf("the listener at line %d names no cluster with slot %d", line, slot)
		}
	}
	l.name, l.nameRows, err = d.text(l.nameAt)
	return l, err
}

type share struct{ threshold, own, other uint32 }

func shares(w words, count uint32) []share {
	out := make([]share, 0, min(count, math.MaxInt32))
	for i := range count {
		out = append(out, share{w[i*shareWords], w[i*shareWords+1], w[i*shareWords+2]})
	}
	return out
}
