package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/plan"
)

// checkNames returns an error if a name is too long.
func (s *Store) checkNames() error {
	for _, c := range s.plan.Clusters {
		if err := checkName(c.Name); err != nil {
			return err
		}
	}
	for _, l := range s.plan.Listeners {
		if err := checkName(l.Name); err != nil {
			return err
		}
	}
	return nil
}

func checkName(name string) error {
	if len(name) <= maxName {
		return nil
	}
	return store.TooLarge(name[:64], "its name has %d bytes; a name can have %d", len(name), maxName)
}

// make writes the plan's resources into lines that no program can see. If it returns an error, the bookkeeping is
// invalid, and the caller must call load.
func (s *Store) make() error {
	p := &s.plan
	for _, l := range p.GoneListeners {
		if err := s.removeListener(l); err != nil {
			return s.at(l.Name, err)
		}
	}
	for _, c := range p.GoneClusters {
		if err := s.removeCluster(c); err != nil {
			return s.at(c.Name, err)
		}
	}
	for i := range p.Clusters {
		if err := s.setCluster(&p.Clusters[i]); err != nil {
			return s.at(p.Clusters[i].Name, err)
		}
	}
	// Listeners may swap addresses, so all listeners that move leave their addresses before any of them takes a new one.
	for i := range p.Listeners {
		if l := &p.Listeners[i]; l.Moves() {
			if err := s.leave(l.Entry); err != nil {
				return s.at(l.Name, err)
			}
		}
	}
	for i := range p.Listeners {
		if err := s.setListener(&p.Listeners[i]); err != nil {
			return s.at(p.Listeners[i].Name, err)
		}
	}
	return nil
}

// at turns errFull into a *fault.Error that names a resource. It returns any other error unchanged.
func (s *Store) at(name string, err error) error {
	if errors.Is(err, errFull) {
		return store.TooLarge(name, "%s", err)
	}
	return err
}

// leaf returns leaf i of t, in lines that this change may write.
func (s *Store) leaf(t *tree, i uint32) (words, error) {
	n := &t.leaves[i]
	if n.stamp == s.stamp {
		return s.m.at(n.line, 1), nil
	}
	branch, err := s.writable(&t.branches[i/branchLeaves], branchLines)
	if err != nil {
		return nil, err
	}
	w, err := s.writable(n, 1)
	if err != nil {
		return nil, err
	}
	branch[i%branchLeaves] = n.line
	return w, nil
}

// writable returns the memory of a node that this change may write: a copy, unless the change has already made one.
func (s *Store) writable(n *node, lines uint32) (words, error) {
	if n.stamp == s.stamp {
		return s.m.at(n.line, lines), nil
	}
	line, err := s.take(lines)
	if err != nil {
		return nil, err
	}
	w := s.m.at(line, lines)
	if n.line == 0 {
		clear(w)
	} else {
		copy(w, s.m.at(n.line, lines))
		s.drop(piece{n.line, lines})
	}
	*n = node{line, s.stamp}
	return w, nil
}

// setSlot stores the line of a cluster in a slot. Line 0 frees the slot.
func (s *Store) setSlot(slot, line uint32) error {
	w, err := s.leaf(&s.slotTree, slot/slotsPerLeaf)
	if err != nil {
		return err
	}
	w[slot%slotsPerLeaf] = line
	return nil
}

func (s *Store) writeName(name string) (piece, error) {
	n := nameLines(len(name))
	line, err := s.take(n)
	if err != nil {
		return piece{}, err
	}
	w := s.m.at(line, n)
	w[len(w)-1] = 0
	w[nameLength] = uint32(len(name))
	text := w[nameText:].bytes()
	clear(text[copy(text, name):])
	return piece{line, n}, nil
}

// newCluster allocates a slot for a name, and writes the name. It does not write the slot.
func (s *Store) newCluster(name string) (*known, error) {
	slot, ok := s.slots.Latest()
	if !ok {
		return nil, store.TooLarge(name, "there is no room for its name; the store holds %d clusters, including those "+
			"that listeners name and that do not exist", s.g.slots())
	}
	text, err := s.writeName(name)
	if err != nil {
		return nil, err
	}
	c := s.config.Name(name)
	c.Own = cluster{slot: slot, id: noID, text: text}
	return c, nil
}

// replace allocates new lines for a cluster, stores their place in the cluster's slot, and drops the old lines. It
// returns the new lines with the cluster's number, length and name filled in.
func (s *Store) replace(c *cluster, lines uint32) (words, error) {
	line, err := s.take(lines)
	if err != nil {
		return nil, err
	}
	if err := s.setSlot(c.slot, line); err != nil {
		return nil, err
	}
	s.drop(c.at)
	c.at = piece{line, lines}
	w := s.m.at(line, lines)
	clear(w[:clusterTable])
	w[clusterID], w[clusterLines], w[clusterName] = c.id, lines, c.text.line
	return w, nil
}

func (s *Store) setCluster(x *plan.ClusterPlan[cluster]) (err error) {
	c := s.config.Clusters[x.Name] // not x.Old: removing a listener may have released it
	if c == nil {
		if c, err = s.newCluster(x.Name); err != nil {
			return err
		}
	}
	if !c.There {
		c.Own.id, _ = s.ids.Oldest() // there are more numbers than clusters
	}
	s.targets = x.Targets(s.targets[:0])
	s.weights = s.weights[:0]
	form, words := uint32(endpointsOfIPv4), uint32(endpoint4Words)
	for i := range s.targets {
		s.weights = append(s.weights, s.targets[i].Weight)
		if a := s.targets[i].Address.Addr(); !a.Is4() && !a.Is4In6() {
			form, words = endpointsOfIPv6, endpoint6Words
		}
	}
	n := uint32(len(s.weights))
	size := n * words
	w, err := s.replace(&c.Own, (clusterTable+size+lineWords-1)/lineWords)
	if err != nil {
		return err
	}
	s.config.Set(c, true, len(s.targets))
	w[clusterMax], w[clusterCount], w[clusterForm] = x.Breakers.MaxConnections, n, form
	s.alias.Make(s.weights)
	table := w[clusterTable:]
	if form == endpointsOfIPv4 {
		s.writeIPv4(table)
	} else {
		s.writeIPv6(table)
	}
	clear(table[size:])
	return nil
}

func (s *Store) writeIPv4(w words) {
	for i := range s.targets {
		own, other := s.targets[i].Address, s.targets[s.alias.Other[i]].Address
		e := w[i*endpoint4Words : (i+1)*endpoint4Words]
		e[0], e[1] = s.alias.Threshold[i], four(own.Addr())
		ports := uint32(bits.ReverseBytes16(own.Port()))
		e[2] = e[1]
		if own != other {
			e[2] = four(other.Addr())
		}
		e[3] = ports | uint32(bits.ReverseBytes16(other.Port()))<<16
	}
}

// four returns an IPv4 address in network byte order.
func four(a netip.Addr) uint32 {
	ip := a.As4()
	return binary.LittleEndian.Uint32(ip[:])
}

func (s *Store) writeIPv6(w words) {
	for i := range s.targets {
		a := s.targets[i].Address
		ip := a.Addr().As16()
		e := w[i*endpoint6Words : (i+1)*endpoint6Words]
		for j := range 4 {
			e[j] = binary.LittleEndian.Uint32(ip[4*j:])
		}
		e[4], e[5], e[6], e[7] = uint32(bits.ReverseBytes16(a.Port())), s.alias.Threshold[i], s.alias.Other[i], 0
	}
}

func (s *Store) removeCluster(c *known) error {
	s.ids.Give(c.Own.id)
	c.Own.id = noID
	s.config.Set(c, false, 0)
	if c.Own.uses == 0 {
		return s.forget(c)
	}
	return s.absent(&c.Own)
}

// absent writes c as a cluster that listeners name but that does not exist.
func (s *Store) absent(c *cluster) error {
	w, err := s.replace(c, 1)
	if err != nil {
		return err
	}
	clear(w[clusterTable:])
	return nil
}

// forget frees the slot of a cluster that does not exist and that no listener names.
func (s *Store) forget(c *known) error {
	if err := s.setSlot(c.Own.slot, 0); err != nil {
		return err
	}
	s.drop(c.Own.at)
	s.drop(c.Own.text)
	s.slots.Give(c.Own.slot)
	delete(s.config.Clusters, c.Name)
	return nil
}

// use returns the cluster that a listener names, and adds it to s.uses. A new name becomes an absent cluster.
func (s *Store) use(name string) (*known, error) {
	c := s.config.Clusters[name]
	if c == nil {
		err := checkName(name)
		if err != nil {
			return nil, err
		}
		if c, err = s.newCluster(name); err != nil {
			return nil, err
		}
		if err := s.absent(&c.Own); err != nil {
			return nil, err
		}
	}
	c.Own.uses++
	s.uses = append(s.uses, c)
	return c, nil
}

// unuse releases the clusters that a listener has named.
func (s *Store) unuse(clusters []*known) error {
	for _, c := range clusters {
		if c.Own.uses--; c.Own.uses == 0 && !c.There {
			if err := s.forget(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave removes a listener from its address.
func (s *Store) leave(l *plan.Listener[listener]) error {
	if !s.config.Leave(l) {
		return nil
	}
	k := keyOf(l.Address)
	s.count(&k, -1)
	return s.setBucket(&k, l.Own.at.line, 0)
}

func (s *Store) removeListener(l *plan.Listener[listener]) error {
	delete(s.config.Listeners, l.Name)
	s.drop(l.Own.at)
	s.drop(l.Own.text)
	if err := s.leave(l); err != nil {
		return err
	}
	return s.unuse(l.Own.uses)
}

func (s *Store) setListener(x *plan.ListenerPlan[listener]) (err error) {
	l := x.Entry
	if x.New {
		if l.Own.text, err = s.writeName(x.Name); err != nil {
			return err
		}
	}
	k := keyOf(x.At)
	at, err := s.writeListener(x, &k, l.Own.text.line)
	if err != nil {
		return err
	}
	before := l.Own.at.line
	if s.config.Addresses[x.At] != l { // it is new, or has left its address
		before = 0
		s.config.Put(l, x.At)
		s.count(&k, 1)
	}
	if err := s.setBucket(&k, before, at.line); err != nil {
		return err
	}
	s.drop(l.Own.at)
	l.Own.at = at
	l.Own.uses, s.uses = s.uses, l.Own.uses
	return s.unuse(s.uses)
}

// writeListener writes a listener's lines, and sets s.uses to the clusters that it names.
func (s *Store) writeListener(x *plan.ListenerPlan[listener], k *key, name uint32) (at piece, err error) {
	s.uses = s.uses[:0]
	rules := x.Rules
	last := mesh.Rule{Chain: -2} // connections that no rule matches are refused
	n := uint32(len(rules))
	if n > 0 && rules[n-1].MatchesAll() {
		last = rules[n-1]
		n--
		rules = rules[:n]
	}
	at.lines = 1 + n
	for i := range rules {
		at.lines += tableLines(x.Listener, rules[i].Chain)
	}
	at.lines += tableLines(x.Listener, last.Chain)
	if at.line, err = s.take(at.lines); err != nil {
		return piece{}, err
	}
	w := s.m.at(at.line, at.lines)
	clear(w)
	copy(w, k.ip[:])
	w[listenerPort], w[listenerRules], w[listenerLines], w[listenerName] = k.port, n, at.lines, name
	free := 1 + n
	if free, err = s.writeTarget(w, w[listenerTarget:], x.Listener, last.Chain, free); err != nil {
		return piece{}, err
	}
	for i := range rules {
		r := w.at(1+uint32(i), 1)
		writeRule(r, &rules[i])
		if free, err = s.writeTarget(w, r[ruleTarget:], x.Listener, rules[i].Chain, free); err != nil {
			return piece{}, err
		}
	}
	return at, nil
}

// chosen returns the number of a chain's clusters that have a weight.
func chosen(x *mesh.Listener, chain int) (count uint32) {
	if chain < 0 {
		return 0
	}
	for _, c := range x.Chain(chain).Proxy.Clusters {
		if c.Weight > 0 {
			count++
		}
	}
	return count
}

func tableLines(x *mesh.Listener, chain int) uint32 {
	n := chosen(x, chain)
	if n < 2 {
		return 0
	}
	return (n*shareWords + lineWords - 1) / lineWords
}

// writeTarget writes to target where a chain's connections go. If that takes a table, writeTarget writes it to w,
// beginning at the line free. It returns the next free line.
func (s *Store) writeTarget(w, target words, x *mesh.Listener, chain int, free uint32) (uint32, error) {
	if chain == mesh.Denied {
		target[0] = denied
		return free, nil
	}
	n := chosen(x, chain)
	if n == 0 {
		return free, nil
	}
	s.weights, s.chosen = s.weights[:0], s.chosen[:0]
	for _, c := range x.Chain(chain).Proxy.Clusters {
		if c.Weight == 0 {
			continue
		}
		used, err := s.use(c.Name)
		if err != nil {
			return 0, err
		}
		s.weights, s.chosen = append(s.weights, c.Weight), append(s.chosen, used.Own.slot)
	}
	target[0], target[1] = n, free
	if n == 1 {
		target[1] = s.chosen[0]
		return free, nil
	}
	s.alias.Make(s.weights)
	for i, e := 0, w[free*lineWords:]; i < int(n); i, e = i+1, e[shareWords:] {
		e[0], e[1], e[2] = s.alias.Threshold[i], s.chosen[i], s.chosen[s.alias.Other[i]]
	}
	return free + tableLines(x, chain), nil
}

func writeRule(w words, r *mesh.Rule) {
	source, sourceFamily := writePrefix(w[ruleSource:], r.Source)
	destination, destinationFamily := writePrefix(w[ruleDestination:], r.Destination)
	w[ruleRest] = source | destination<<16
	w[rulePorts], w[rulePorts+1] = portWord(r.SourcePorts), portWord(r.DestinationPorts)
	w[ruleFamilies] = sourceFamily*sourceOfIPv6 | destinationFamily*destinationOfIPv6
}

// writePrefix writes a prefix as two 64-bit numbers, the upper half first. rest holds the numbers of low bits that do
// not matter: of the upper half in its lowest byte, of the lower half in the next byte. of6 is 1 for an IPv6 prefix,
// which contains no IPv4 address.
func writePrefix(w words, p netip.Prefix) (rest, of6 uint32) {
	if !p.IsValid() {
		return 64 | 64<<8, 0
	}
	length := uint32(p.Bits())
	if p.Addr().Is4() {
		length += 96
	} else {
		of6 = 1
	}
	ip := p.Addr().As16()
	w.put64(0, binary.BigEndian.Uint64(ip[:8]))
	w.put64(2, binary.BigEndian.Uint64(ip[8:]))
	upper := min(length, 64)
	return 64 - upper | (64-(length-upper))<<8, of6
}

// portWord returns the first port of a range and, in the upper half, how many more there are.
func portWord(r mesh.PortRange) uint32 {
	if r == (mesh.PortRange{}) {
		r.To = 1<<16 - 1
	}
	return uint32(r.From) | uint32(r.To-r.From)<<16
}

// entry is one listener in a bucket.
type entry struct{ line, tag uint32 }

// setBucket replaces a listener's old line in its bucket with a new one. If the old line is 0, it adds the listener; if
// the new one is 0, it removes the listener.
func (s *Store) setBucket(k *key, before, after uint32) error {
	hash := k.hash(s.seed)
	bucket, tag := uint32(hash)&s.g.mask(), uint32(hash>>32)
	w, err := s.leaf(&s.bucketTree, bucket)
	if err != nil {
		return err
	}
	var room [bucketEntries * bucketLines]entry
	entries := room[:0]
	for b := w; ; {
		for i := 0; i < bucketEntries && b[2*i] != 0; i++ {
			entries = append(entries, entry{b[2*i], b[2*i+1]})
		}
		more := b[2*bucketEntries]
		if more == 0 {
			break
		}
		s.drop(piece{more, 1})
		b = s.m.at(more, 1)
	}
	i := slices.Index(entries, entry{before, tag})
	switch {
	case before == 0 && len(entries) == cap(entries):
		return fmt.Errorf("%w: too many listeners have one place in the hash", errFull)
	case before == 0:
		entries = append(entries, entry{after, tag})
	case i < 0:
		return fmt.Errorf("a listener is not in its bucket")
	case after == 0:
		entries = slices.Delete(entries, i, i+1)
	default:
		entries[i].line = after
	}
	for {
		clear(w)
		n := min(len(entries), bucketEntries)
		for i, e := range entries[:n] {
			w[2*i], w[2*i+1] = e.line, e.tag
		}
		if entries = entries[n:]; len(entries) == 0 {
			return nil
		}
		line, err := s.take(1)
		if err != nil {
			return err
		}
		w[2*bucketEntries] = line
		w = s.m.at(line, 1)
	}
}
