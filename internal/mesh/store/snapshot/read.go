package snapshot

import "tare/internal/mesh/store/plan"

// read reads the configuration that programs see, and returns it with the lines that it occupies. It trusts the map,
// because only this process writes to it.
func (s *Store) read() (h held, taken []bool) {
	r := reader{m: s.m, taken: make([]bool, s.g.lines), held: &h, slots: make([]*known, s.g.slots())}
	r.taken[0] = true
	h = held{
		record:     uint32(s.m.get64(superRoot) & (maxLines - 1)),
		slotTree:   newTree(s.g.slotLeaves),
		bucketTree: newTree(s.g.bucketLeaves),
		config:     plan.New[cluster, listener](s.g.options),
	}
	if h.record != 0 {
		root := r.claim(piece{h.record, s.g.rootLines()})
		h.generation = root.get64(rootGeneration)
		r.tree(&h.slotTree, root[lineWords:])
		r.tree(&h.bucketTree, root[s.g.listeners()*lineWords:])
	}
	r.clusters(s.g.ids())
	r.listeners()
	return h, r.taken
}

// reader fills its held from the map.
type reader struct {
	*held
	m     words
	taken []bool   // by line
	slots []*known // by slot
}

// claim marks the lines of one object as occupied, and returns them.
func (r *reader) claim(p piece) words {
	for line := p.line; line < p.line+p.lines; line++ {
		r.taken[line] = true
	}
	return r.m.at(p.line, p.lines)
}

// sized claims the object that begins at the given line. It finds the object's number of lines in that line, at the
// given offset in words.
func (r *reader) sized(line, length uint32) (piece, words) {
	p := piece{line, r.m[line*lineWords+length]}
	return p, r.claim(p)
}

// tree reads the branches of a directory into t, with the lines of their leaves.
func (r *reader) tree(t *tree, directory words) {
	for i := range t.branches {
		line := directory[i]
		if t.branches[i].line = line; line == 0 {
			continue
		}
		for j, leaf := range r.claim(piece{line, branchLines}) {
			t.leaves[i*branchLeaves+j].line = leaf
		}
	}
}

// clusters reads the clusters of all slots, and finds the free slots and the free numbers below ids.
func (r *reader) clusters(ids uint32) {
	usedIDs, usedSlots := make([]bool, ids), make([]bool, len(r.slots))
	for i, leaf := range r.slotTree.leaves {
		if leaf.line == 0 {
			continue
		}
		for j, line := range r.claim(piece{leaf.line, 1}) {
			if line == 0 {
				continue
			}
			at, w := r.sized(line, clusterLines)
			name, text := r.name(w[clusterName])
			c := r.config.Name(name)
			c.Own = cluster{slot: uint32(i*slotsPerLeaf + j), id: w[clusterID], at: at, text: text}
			if c.Own.id != noID {
				usedIDs[c.Own.id] = true
				r.config.Set(c, true, int(w[clusterCount]))
			}
			r.slots[c.Own.slot], usedSlots[c.Own.slot] = c, true
		}
	}
	r.held.slots, r.ids = plan.Except(usedSlots), plan.Except(usedIDs)
}

// listeners reads the listeners of all buckets.
func (r *reader) listeners() {
	for _, leaf := range r.bucketTree.leaves {
		for line := leaf.line; line != 0; {
			bucket := r.claim(piece{line, 1})
			for i := 0; i < bucketEntries && bucket[2*i] != 0; i++ {
				r.listener(bucket[2*i])
			}
			line = bucket[2*bucketEntries]
		}
	}
}

func (r *reader) listener(line uint32) {
	at, w := r.sized(line, listenerLines)
	name, text := r.name(w[listenerName])
	l := &plan.Listener[listener]{Name: name, Own: listener{at: at, text: text}}
	r.target(&l.Own, w, w[listenerTarget:])
	for i := range w[listenerRules] {
		r.target(&l.Own, w, w.at(1+i, 1)[ruleTarget:])
	}
	k := key{ip: [4]uint32(w[:4]), port: w[listenerPort]}
	r.config.Put(l, k.address())
	r.count(&k, 1)
}

// target adds to l the clusters to which a target sends connections. The words w are the listener's lines.
func (r *reader) target(l *listener, w, target words) {
	use := func(slot uint32) {
		l.uses = append(l.uses, r.slots[slot])
		r.slots[slot].Own.uses++
	}
	switch count, where := target[0], target[1]; count {
	case 0, denied:
	case 1:
		use(where)
	default:
		for i := range count {
			use(w[where*lineWords+i*shareWords+1])
		}
	}
}

func (r *reader) name(line uint32) (string, piece) {
	n := r.m[line*lineWords+nameLength]
	at := piece{line, nameLines(int(n))}
	return string(r.claim(at)[nameText:].bytes()[:n]), at
}
