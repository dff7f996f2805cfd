package xds

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"

	"tare/internal/mesh/xds/translate"
)

// intake reads responses: it enforces the limits, skips unchanged resources, and decodes and stages the others.
type intake struct {
	limits Limits
	seeds  [2]maphash.Seed
	taken  [kinds]map[string]taken // the accepted resources of each type, by name
	bytes  int                     // memory of all accepted resources
	sorts  *state                  // parses and stages resources, by type

	garbage int           // bytes of garbage, counted by litter
	large   *sync.Mutex   // held while a large resource is decoded
	ahead   *atomic.Int64 // growth of bytes if all resources that were decoded in advance are accepted
}

func newIntake(l Limits, to *state) intake {
	s := intake{limits: l, sorts: to, large: &sync.Mutex{}, ahead: &atomic.Int64{}}
	for k := range s.taken {
		s.taken[k] = map[string]taken{}
	}
	for i := range s.seeds {
		s.seeds[i] = maphash.MakeSeed()
	}
	return s
}

// taken describes an accepted resource, so that the client recognizes it when it is sent again.
type taken struct {
	sum     digest
	size    int // received bytes
	cost    int // bytes of memory
	version string
}

// perResource is the memory in bytes that a resource takes besides its text and its decoded form, for entries in maps.
const perResource = 512

// cost returns the memory of a decoded resource in bytes.
func (it *item) cost() int { return perResource + len(it.read.name) + len(it.version) + it.read.cost }

// digest identifies the bytes of a resource. Its seeds are random and known only to this process, so two resources have
// the same digest only by chance, with a probability of 10^-38.
type digest [2]uint64

func (s *intake) digest(b []byte) digest {
	return digest{maphash.Bytes(s.seeds[0], b), maphash.Bytes(s.seeds[1], b)}
}

// take stages a response: its valid resources are wanted from now on. If full is set, and the control plane sends all
// resources of the type, take removes those that the response lacks.
func (s *intake) take(k Kind, r *response, full bool) *outcome {
	s.litter(2 * r.wire)
	o := &outcome{staged: map[resource]int{}}
	seen := map[string]bool{}
	nameless := false // a resource without a name could be any resource, so none counts as removed
	batch := make([]item, 0, min(readAhead, r.count))
	for from := 0; ; from += len(batch) {
		some := r.next(batch)
		if batch = some; len(some) == 0 {
			break
		}
		s.readAll(k, some)
		for i := range some {
			s.litter(perResource + some[i].read.cost)
		}
		for i := range some {
			it := &some[i]
			if err := s.stage(k, it, seen, o); err != nil {
				if it.read.name == "" {
					nameless = true
					err = fmt.Errorf("resources[%d]: %w", from+i, err)
				}
				o.refuse(err)
			}
			it.read = parsed{} // the decoded form may be far larger than the resource
		}
	}
	if full && s.sorts.lists(k) && !nameless {
		for name := range s.taken[k] {
			if !seen[name] {
				s.remove(k, name, o)
			}
		}
	}
	for name := range r.gone {
		if _, ok := s.taken[k][string(name)]; ok && !seen[string(name)] {
			s.remove(k, string(name), o)
		}
	}
	return o
}

// collectEvery is the amount of garbage, in bytes, after which litter collects it.
const collectEvery = 32 << 20

// litter counts the garbage of reading responses, and collects it from time to time. By default (GOGC), garbage may
// grow to several times the live heap, and a large response is live only for a moment.
func (s *intake) litter(bytes int) {
	if s.garbage += bytes; s.garbage > collectEvery {
		s.garbage = 0
		runtime.GC()
	}
}

// readAhead is the number of resources that are decoded before the first of them is staged. At most maxReaders CPUs
// decode them, and each gets at least readAlone, because with fewer, one CPU is as fast as several. Resources of more
// than largeResource bytes are decoded one at a time, because a resource can take many times its length while it is
// decoded.
const (
	readAhead     = 1024
	readAlone     = 32
	maxReaders    = 4
	largeResource = 64 << 10
)

// readAll decodes resources, on several CPUs if there are at least readAlone for each.
func (s *intake) readAll(k Kind, items []item) {
	s.ahead.Store(0)
	if len(items) < readAlone {
		for i := range items {
			s.read(k, &items[i])
		}
		return
	}
	var next atomic.Int64
	var all sync.WaitGroup
	work := func() {
		for {
			to := int(next.Add(readAlone / 2))
			from := to - readAlone/2
			if from >= len(items) {
				return
			}
			for i := range items[from:min(to, len(items))] {
				s.read(k, &items[from+i])
			}
		}
	}
	for range min(runtime.GOMAXPROCS(0), maxReaders, len(items)/readAlone) - 1 {
		all.Go(work)
	}
	work()
	all.Wait()
}

// read decodes a resource, unless the resource is unchanged, or would be refused or ignored in any case. It does not
// change the state.
func (s *intake) read(k Kind, it *item) {
	p := &it.read
	if p.name = translate.Name(it.value); it.name != "" {
		p.name = it.name
	}
	if it.typeURL != typeURLs[k] || it.ttl || len(it.value) > s.limits.Resource || len(p.name) > maxText ||
		len(it.version) > maxText || p.name != "" && !s.sorts.wants(k, p.name) {
		return
	}
	p.sum = s.digest(it.value)
	old, had := s.taken[k][p.name]
	if p.same = had && old.sum == p.sum && old.size == len(it.value); p.same {
		return
	}
	if k == Endpoints { // the exact size is known only after decoding
		p.cost = maxExpansion * len(it.value)
	} else if p.cost, p.err = translate.Weigh(it.typeURL, it.value); p.err != nil {
		p.err = translate.Refused(k.one(), p.name, p.err)
		return
	}
	if ahead := s.ahead.Add(int64(it.cost() - old.cost)); s.bytes+int(ahead) > s.limits.Bytes {
		p.late = true
		return
	}
	s.parse(k, it)
}

// maxExpansion is the maximum ratio of an assignment's memory to its encoded length.
const maxExpansion = 8

// parse decodes a resource for the methods read and stage, and sets the exact cost of endpoints. It decodes only one
// large resource at a time.
func (s *intake) parse(k Kind, it *item) {
	p := &it.read
	if len(it.value) > largeResource {
		s.large.Lock()
		defer s.large.Unlock()
	}
	if p.made, p.err = s.sorts.parse(k, it.value); p.err != nil {
		return
	}
	if a, is := p.made.(translate.Assignment); is {
		p.cost = a.Bytes()
	}
}

// stage checks one resource and, if it is acceptable and changed, makes it part of the wanted state; o records how to
// undo that.
func (s *intake) stage(k Kind, it *item, seen map[string]bool, o *outcome) (err error) {
	name := it.read.name
	before := len(seen)
	seen[name] = true
	switch {
	case name != "" && len(seen) == before:
		return refused(k, name, "it is given twice")
	case it.typeURL != typeURLs[k]:
		return refused(k, name, "it is of type %.200q, not %s", it.typeURL, typeURLs[k])
	case it.ttl:
		return refused(k, name, "a time to live is not supported")
	case len(name) > maxText:
		return refused(k, name, "its name has %d bytes or more; the client takes %d", len(name), maxText)
	case len(it.version) > maxText:
		return refused(k, name, "its version has %d bytes or more; the client takes %d", len(it.version), maxText)
	case len(it.value) > s.limits.Resource:
		return refused(k, name, "it has %d bytes; the client takes %d", len(it.value), s.limits.Resource)
	case name != "" && !s.sorts.wants(k, name):
		return nil // the client never subscribed to it, or has cancelled the subscription in the meantime
	}
	old, had := s.taken[k][name]
	if it.read.same {
		if grown := len(it.version) - len(old.version); old.version != it.version {
			if s.bytes+grown > s.limits.Bytes {
				return s.full(k, name, s.bytes+grown)
			}
			old.version = it.version
			old.cost += grown
			s.bytes += grown
			s.taken[k][name] = old
		}
		return nil
	}
	if !had && len(s.taken[k]) >= s.limits.Resources {
		return refused(
			k,
			name,
			"there are %d %s already, which is the most that the client keeps",
			len(s.taken[k]),
			k,
		)
	}
	if it.read.err != nil {
		return it.read.err
	}
	if it.read.late {
		// It was not decoded because earlier resources seemed to leave no room. Some of those may have been refused since. If
		// there is still no room, it need not be decoded.
		if size := s.bytes - old.cost + it.cost(); size > s.limits.Bytes {
			return s.full(k, name, size)
		}
		if s.parse(k, it); it.read.err != nil {
			return it.read.err
		}
	}
	cost := it.cost()
	if size := s.bytes - old.cost + cost; size > s.limits.Bytes {
		return s.full(k, name, size)
	}
	undo, err := s.sorts.put(k, name, it.read.made, o)
	if err != nil {
		return err
	}
	s.bytes += cost - old.cost
	s.taken[k][name] = taken{it.read.sum, len(it.value), cost, it.version}
	o.changed++
	o.staged[resource{k, name}] = len(o.undo)
	o.undo = append(o.undo, func() {
		undo()
		s.forget(k, name)
		if had {
			s.bytes += old.cost
			s.taken[k][name] = old
		}
	})
	return nil
}

// full returns the refusal of a resource that would exceed the limit of memory.
func (s *intake) full(k Kind, name string, size int) error {
	return refused(k, name, "with it there would be %d bytes of resources; the client keeps %d", size, s.limits.Bytes)
}

func (s *intake) forget(k Kind, name string) {
	s.bytes -= s.taken[k][name].cost
	delete(s.taken[k], name)
}

// retry makes the client stage a resource when it is sent again, even if it is unchanged. The control plane can still
// remove it.
func (s *intake) retry(k Kind, name string) {
	if t, ok := s.taken[k][name]; ok {
		t.size, t.version = -1, "" // no resource has that size
		s.taken[k][name] = t
	}
}

// remove removes a resource, so that it is no longer wanted.
func (s *intake) remove(k Kind, name string, o *outcome) {
	s.forget(k, name)
	s.sorts.drop(k, name, o)
}

// versions returns the versions of a type's resources that the client has, for the first request of a stream of deltas.
func (s *intake) versions(k Kind) map[string]string {
	if len(s.taken[k]) == 0 {
		return nil
	}
	out := make(map[string]string, len(s.taken[k]))
	for name, t := range s.taken[k] {
		out[name] = t.version
	}
	return out
}
