package ads

import (
	"slices"
	"time"

	"tare/internal/lib/lists"
)

// subscription is what a data plane wants of one type, and how much of it it has received.
type subscription struct {
	url  string
	kind kind

	names *names // that it asks for
	all   bool   // whatever there is
	named bool   // it has ever asked by name: from then on, nothing means nothing

	sent  *Table          // what it was sent last, as far as it wants it
	began *Table          // what there was at the first request: what differs from it then was asked for, and is no news
	due   bool            // it waits for a response, even if there is nothing to tell
	owed  map[string]bool // names that are to be sent, whether or not it has them; true: it asked for them
	owing int64           // bytes of those that are in no table, and of telling so
	stubs int64           // bytes of what is in sent by the data plane's word alone
	doubt []*Resource     // of responses that it refused: it may have taken a part of them

	nonce   string // of the last response
	waiting bool   // for its answer
	told    int64  // bytes of the last response, but for resources, until it is answered
	at      int64  // when the last response left, ns by pace.Now
	since   int64  // of the view that it showed
	asked   bool   // the data plane had asked for it
	flight  []*Resource
}

const everything = "*"

func (s *subscription) wants(name string) bool {
	if s.all {
		return true
	}
	return s.names.has(name)
}

// blocked says whether a response is under way. One that is not answered in patience is no longer waited for.
func (s *subscription) blocked(now int64, patience time.Duration) bool {
	return s.waiting && now-s.at < int64(patience)
}

// answer takes note of an answer to a response, and says whether it is the first to the last one.
func (s *subscription) answer(r *request) bool {
	if !s.waiting || r.nonce != s.nonce {
		return false
	}
	if r.refused {
		s.doubt = with(s.doubt, s.flight)
	}
	s.waiting, s.flight, s.told = false, nil, 0
	return true
}

// keeps is what the subscription takes that it has in common with no other, in bytes.
func (s *subscription) keeps() int64 { return s.names.own + s.owing + s.stubs + s.told }

// owe has a name sent, by what there is now.
func (s *subscription) owe(name string, asked bool, now *Table) {
	if s.owed == nil {
		s.owed = map[string]bool{}
	}
	before, known := s.owed[name]
	if r := now.Get(name); r != nil {
		name = r.name
	} else if !known {
		s.owing += owing(name)
	}
	s.owed[name] = before || asked
}

// owing is what it takes to keep in mind that a name is owed, and to tell that it is not there.
func owing(name string) int64 { return int64(2*len(name)) + 4*nameAround }

// asks says whether the data plane waits for something that it asked for.
func (s *subscription) asks() bool {
	for _, asked := range s.owed {
		if asked {
			return true
		}
	}
	return s.due
}

// wholeOf takes the special name for everything out of a list.
func wholeOf(names []string) (all bool, rest []string) {
	for _, name := range names {
		if name == everything {
			all = true
		} else {
			rest = append(rest, name)
		}
	}
	return all, rest
}

// replace has the subscription be for names and no others, as every request of the state of the world says it. Nothing
// means everything of roots, until something was named.
func (s *subscription) replace(list []string, now *Table, sets *nameSets) {
	if len(list) == 0 && !s.named {
		if !s.all && s.kind.roots {
			s.all, s.due = true, true
		}
		return
	}
	s.named = true
	all, rest := wholeOf(list)
	names := sets.of(rest, now)
	for _, name := range names.list {
		if !s.names.has(name) {
			if s.owe(name, true, now); s.kind.whole { // what is not in the response is not there
				s.due = true
			}
		}
	}
	if all && !s.all {
		s.sent, s.due = s.sent.only(s.names.list), true
	}
	s.names, s.all = names, all
	s.forgive(now)
}

// forgive forgets what is owed and not wanted any more.
func (s *subscription) forgive(now *Table) {
	s.owing = 0
	for name := range s.owed {
		if !s.wants(name) {
			delete(s.owed, name)
		} else if now.Get(name) == nil {
			s.owing += owing(name)
		}
	}
}

// change adds names and takes names away, as requests of deltas say it. What is added is sent even if it was before:
// the data plane may have forgotten it. first is the first request of the type, which says also what is known.
func (s *subscription) change(r *request, first bool, now *Table, sets *nameSets) {
	if first {
		s.began = now
		s.sent = r.stubs()
		if s.stubs = sizeOf(s.sent.list); len(r.names) == 0 && len(r.drop) == 0 && s.kind.roots {
			s.all, s.due = true, true
		}
	}
	if len(r.names) > 0 {
		s.named = true
		all, rest := wholeOf(r.names)
		if all && !s.all {
			if s.all, s.due = true, true; !first {
				s.sent = s.sent.only(s.names.list)
			}
		}
		for _, name := range rest {
			if first && s.sent.Get(name) != nil {
				continue
			}
			s.owe(name, true, now)
		}
		s.names = sets.of(append(rest, s.names.list...), now)
	}
	if len(r.drop) == 0 {
		return
	}
	all, rest := wholeOf(r.drop)
	if all {
		s.all = false
	}
	var left []string
	slices.Sort(rest)
	for _, name := range s.names.list {
		if _, drop := slices.BinarySearch(rest, name); !drop {
			left = append(left, name)
		} else if s.all { // it does not know whether what it has is still among all
			s.owe(name, true, now)
		}
	}
	s.names = sets.of(left, now)
	s.forgive(now)
}

// pick is those of a list that are wanted. The list is not changed, and may be the result.
func (s *subscription) pick(list []*Resource) []*Resource {
	if s.all {
		return list
	}
	if len(s.names.list) < len(list)/8 { // few of many
		return (&Table{list: list}).only(s.names.list).list
	}
	if !slices.ContainsFunc(list, func(r *Resource) bool { return !s.wants(r.name) }) {
		return list
	}
	var some []*Resource
	for _, r := range list {
		if s.wants(r.name) {
			some = append(some, r)
		}
	}
	return some
}

// wanted are those of a table that are wanted.
func (s *subscription) wanted(t *Table) []*Resource {
	if !s.all && len(s.names.list) < t.Len()/8 {
		return t.only(s.names.list).list
	}
	return s.pick(t.all())
}

// pending says whether a stage has anything to do for the subscription.
func (s *subscription) pending(at stage, now *Table) bool {
	switch {
	case at == breaks:
		return s.kind.late && s.sent != now
	case at != s.kind.stage:
		return false
	case s.due || len(s.owed) > 0:
		return true
	case !s.kind.late:
		return s.sent != now
	}
	return s.sent != now && s.sent.stepTo(now).kept != s.sent
}

// news is what a response says.
type news struct {
	version   string
	resources []*Resource
	removed   []string
	changed   []*Resource // of resources, what may not be what the data plane has
	asked     bool        // it, or a part of it, was asked for
}

// tell takes a subscription on to a table, as far as the stage goes, and says what the data plane is to be sent; nil:
// nothing of it concerns it.
func (s *subscription) tell(at stage, now *Table, delta bool) *news {
	d := s.sent.stepTo(now)
	begins := s.began == now
	if at == breaks {
		s.sent, s.stubs, s.began = now, 0, nil
		n := &news{version: now.version, removed: namesOf(s.pick(d.removed)), asked: begins}
		if len(n.removed) == 0 || !delta && !s.kind.whole {
			return nil
		}
		if !delta {
			n.resources, n.removed = s.wanted(now), nil
		}
		return n
	}
	to, asked := now, s.due
	n := &news{changed: s.pick(d.changed), asked: s.asks() || begins}
	if s.kind.late {
		to = d.kept
	} else {
		n.removed = namesOf(s.pick(d.removed))
	}
	n.version = to.version
	var more []*Resource
	if len(n.changed)+len(n.removed) > 0 {
		for _, old := range s.doubt {
			more = append(more, now.Get(old.name))
		}
		s.doubt = nil
	}
	for name := range s.owed {
		if more = append(more, now.Get(name)); to.Get(name) == nil {
			n.removed = append(n.removed, name)
		}
	}
	n.changed, n.removed = with(n.changed, more), sorted(n.removed)
	s.sent, s.due, s.owed, s.owing = to, false, nil, 0
	if !begins || to == now {
		s.began = nil
	}
	if s.stubs > 0 { // of what is removed in the end they stay
		if s.stubs = 0; to != now {
			s.stubs = sizeOf(d.removed)
		}
	}
	n.resources = n.changed
	if !delta {
		if s.kind.whole && len(n.changed)+len(n.removed) > 0 || asked {
			asked, n.resources = true, s.wanted(to)
		}
		n.removed = nil
	}
	if len(n.resources)+len(n.removed) == 0 && !asked {
		return nil
	}
	return n
}

// with is a list with more resources in it, all once and in order. The list itself stays as it is.
func with(list, more []*Resource) []*Resource {
	if more = slices.DeleteFunc(more, func(r *Resource) bool { return r == nil }); len(more) == 0 {
		return list
	}
	all := slices.Concat(list, more)
	slices.SortFunc(all, byName)
	return slices.Compact(all)
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

func namesOf(list []*Resource) []string {
	return lists.Map(list, func(r *Resource) string { return r.name })
}
