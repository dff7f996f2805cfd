package value

import (
	"tare/internal/lib/fault"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/plan"
)

// room counts the slots of each class that a change needs: takes is the number that it takes, minus the number that it
// frees; late is the number that it frees by removals, which come last unless their room is needed.
type room struct{ takes, late [nClasses]int }

// goes counts a slot that a removal frees.
func (r *room) goes(class int) {
	r.takes[class]--
	r.late[class]++
}

// check finds a class for every resource that a change writes, or returns what is wrong with the change. It does not
// change the store. goFirst reports whether removals must come first to make room.
func (s *values) check(p *change) (goFirst bool, err error) {
	var r room
	s.fit = s.fit[:0]
	if s.names == nil || len(s.names) > 64 { // clearing a map takes time in proportion to its largest size so far
		s.names = map[string]bool{}
	}
	clear(s.names)
	if err := s.checkClusters(p, &r); err != nil {
		return false, err
	}
	if err := s.checkListeners(p, &r); err != nil {
		return false, err
	}
	if len(s.names) > s.ids.Left() {
		return false, fault.New(fault.Usage, p.Last(), "raise the number of clusters that the store holds",
			"there are more names of clusters than the store can number")
	}
	for class, late := range r.late {
		goFirst = goFirst || !s.has(class, r.takes[class]+late)
	}
	return goFirst, nil
}

// has reports whether a class has room for n more resources, with one slot left over.
func (s *values) has(class, n int) bool { return n < s.classes[class].slots.Left() }

func (s *values) checkClusters(p *change, r *room) error {
	for _, c := range p.Clusters {
		s.targets = c.Targets(s.targets[:0])
		n := len(s.targets)
		if n > MaxEndpoints {
			return store.TooLarge(c.Name, "%d endpoints take connections; a cluster can have %d", n, MaxEndpoints)
		}
		for _, t := range s.targets {
			if !t.Address.Addr().IsValid() {
				return fault.New(fault.Usage, c.Name, "give every endpoint an IP address", "an endpoint has no address")
			}
		}
		fit := -1
		if n > 0 {
			for fit = small; n > s.classes[fit].holds; {
				fit++
			}
			r.takes[fit]++
		}
		s.fit = append(s.fit, fit)
		if c.Old == nil {
			s.names[c.Name] = true
		} else if c.Old.Own.place != nil {
			r.takes[c.Old.Own.place.class]--
		}
	}
	for _, c := range p.GoneClusters {
		if c.Own.place != nil {
			r.goes(c.Own.place.class)
		}
	}
	for i, c := range p.Clusters {
		if class := s.fit[i]; class >= 0 && !s.has(class, r.takes[class]) {
			return store.TooLarge(c.Name, "%d endpoints: the store holds %d clusters of this size, and has as many",
				len(c.Targets(nil)), s.classes[class].capacity)
		}
	}
	return nil
}

func (s *values) checkListeners(p *change, r *room) error {
	for i := range p.Listeners {
		l := &p.Listeners[i]
		n := s.choices(l)
		if n > MaxChoices {
			return store.TooLarge(l.Name, "%d weighted clusters; a listener can have %d", n, MaxChoices)
		}
		fit := short
		if len(l.Rules) > len(s.short_.Rules) || n > len(s.short_.Choices) {
			fit = long
		}
		s.fit = append(s.fit, fit)
		r.takes[fit]++
		if old := s.keys[l.At]; old != nil {
			r.takes[old.class]--
		}
		if l.Moves() && !p.Takes(l.Entry.Address) {
			r.goes(s.keys[l.Entry.Address].class)
		}
	}
	for _, l := range p.GoneListeners {
		if !p.Takes(l.Address) {
			r.goes(s.keys[l.Address].class)
		}
	}
	for i := range p.Listeners {
		l := &p.Listeners[i]
		if class := s.fit[len(p.Clusters)+i]; !s.has(class, r.takes[class]) {
			return store.TooLarge(l.Name,
				"%d rules, %d weighted clusters: the store holds %d listeners of this size, and has as many",
				len(l.Rules), s.choices(l), s.classes[class].capacity)
		}
	}
	return nil
}

// choices returns the number of weighted clusters in the chains of a listener's rules. It adds new names to s.names.
func (s *values) choices(l *plan.ListenerPlan[listener]) (n int) {
	for i, r := range l.Rules {
		seen := r.Chain < 0
		for j := range i {
			seen = seen || l.Rules[j].Chain == r.Chain
		}
		if seen {
			continue
		}
		for _, w := range l.Chain(r.Chain).Proxy.Clusters {
			if w.Weight == 0 {
				continue
			}
			n++
			if s.config.Clusters[w.Name] == nil {
				s.names[w.Name] = true
			}
		}
	}
	return n
}
