package ads

import (
	"slices"
	"time"

	"tare/internal/lib/lists"
)

// subscription holds what a data plane has subscribed to and been sent of one type.
type subscription struct {
	url  string
	kind kind

	names *names // subscribed by name
	all   bool   // subscribed to all
	named bool   // the data plane has subscribed by name before; from then on, an empty list means none

	sent  *Table          // the last table sent: the data plane has those of its resources that it subscribed to
	began *Table          // the table at the first request; while it is current, responses count as requested
	due   bool            // a response is due even if it is empty
	owed  map[string]bool // names to send even if the data plane has them; true: it requested them
	owing int64           // bytes to keep, and to report as missing, the names in owed that the table lacks
	stubs int64           // bytes of resources that are in sent only because the data plane claims to have them
	doubt []*Resource     // resources of refused responses: some may have been applied

	nonce   string    // of the last response
	head    int64     // bytes of the last response, except its resources; 0 once it is answered
	at      int64     // when the last response left, ns by pace.Now
	flights []*flight // the last responses that are not answered, the oldest first; at most mostFlights
}

// flight is a response that the data plane may still answer.
type flight struct {
	nonce   string
	since   int64 // Since of its view
	asked   bool  // the data plane requested it
	changed []*Resource
}

// mostFlights is the number of unanswered responses of a type whose answers still count. While one is unanswered, the
// next is sent only after Options.Patience.
const mostFlights = 8

const everything = "*"

func (s *subscription) wants(name string) bool {
	if s.all {
		return true
	}
	return s.names.has(name)
}

// blocked reports whether a response is unanswered and was sent less than patience ago.
func (s *subscription) blocked(now int64, patience time.Duration) bool {
	return len(s.flights) > 0 && now-s.at < int64(patience)
}

// sends records that a response is sent.
func (s *subscription) sends(f *flight) {
	if len(s.flights) == mostFlights {
		s.flights = slices.Delete(s.flights, 0, 1)
	}
	s.flights = append(s.flights, f)
	s.nonce = f.nonce
}

// answer processes a request, and returns the response that it accepts or refuses; nil: none, or one that was answered
// before. Data planes answer in order, so responses before that one will not be answered any more.
func (s *subscription) answer(r *request) *flight {
	i := slices.IndexFunc(s.flights, func(f *flight) bool { return f.nonce == r.nonce })
	if i < 0 {
		return nil
	}
	f := s.flights[i]
	if r.refused {
		s.doubt = with(s.doubt, f.changed)
	}
	if s.flights = slices.Delete(s.flights, 0, i+1); len(s.flights) == 0 {
		s.flights, s.head = nil, 0
	}
	return f
}

// keeps returns the bytes that the subscription takes and does not share.
func (s *subscription) keeps() int64 { return s.names.own + s.owing + s.stubs + s.head }

// owe marks a name to be sent. now is the current table.
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

// owing returns the bytes that it takes to remember an owed name and to report it as missing.
func owing(name string) int64 { return int64(2*len(name)) + 4*nameAround }

// asks reports whether the data plane waits for something that it requested.
func (s *subscription) asks() bool {
	for _, asked := range s.owed {
		if asked {
			return true
		}
	}
	return s.due
}

// wholeOf separates the name "*", which means everything, from the other names.
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

// replace subscribes to these names and no others, as every state-of-the-world request does. For types with kind.roots,
// an empty list means everything until a request has had a name.
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
			if s.owe(name, true, now); s.kind.whole { // a resource that the response lacks would count as removed
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

// forgive removes owed names that are no longer wanted.
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

// change adds and drops names, as delta requests do. A name that is added is sent even if it was sent before, because
// the data plane may have forgotten it. first means that r is the first request of the type, which also lists what the
// data plane has.
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
		} else if s.all { // the data plane does not know whether "*" includes it
			s.owe(name, true, now)
		}
	}
	s.names = sets.of(left, now)
	s.forgive(now)
}

// pick returns the wanted resources of a list. It does not change the list, and may return it.
func (s *subscription) pick(list []*Resource) []*Resource {
	if s.all {
		return list
	}
	if len(s.names.list) < len(list)/8 { // a few names of many resources
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

// wanted returns the wanted resources of a table.
func (s *subscription) wanted(t *Table) []*Resource {
	if !s.all && len(s.names.list) < t.Len()/8 {
		return t.only(s.names.list).list
	}
	return s.pick(t.all())
}

// pending reports whether a stage has anything to do for the subscription.
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

// news is the content of a response.
type news struct {
	version   string
	resources []*Resource
	removed   []string
	changed   []*Resource // elements of resources that the data plane might not have
	asked     bool        // some of it was requested
}

// advance advances a subscription to a table, as far as the stage allows, and returns what to send, or nil.
func (s *subscription) advance(at stage, now *Table, delta bool) *news {
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
	if s.stubs > 0 { // only the stubs that the last stage will remove still take memory
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

// with returns a list with more resources, sorted and without duplicates. It does not change the list itself.
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
