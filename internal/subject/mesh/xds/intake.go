package xds

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"

	"tare/internal/subject/mesh/xds/translate"
)

// intake reads responses: it bounds what is kept, knows what comes again, and decodes and stages the rest.
type intake struct {
	limits Limits
	seeds  [2]maphash.Seed
	taken  [kinds]map[string]taken // what was accepted of each kind, by name
	bytes  int                     // of all that was taken
	sorts  sorter
}

// sorter is where resources go once they are read.
type sorter interface {
	lists(
		k Kind,
	) bool // the state of the world has all of a kind, so that what is not there is gone
	wants(k Kind, name string) bool      // whether anybody asked for it
	parse(k Kind, b []byte) (any, error) // called by several goroutines at a time
	put(k Kind, name string, made any, o *outcome) (undo func(), err error)
	drop(k Kind, name string, o *outcome)
}

func newIntake(l Limits, to sorter) intake {
	s := intake{limits: l, sorts: to}
	for k := range s.taken {
		s.taken[k] = map[string]taken{}
	}
	for i := range s.seeds {
		s.seeds[i] = maphash.MakeSeed()
	}
	return s
}

// taken is what is kept of a resource as it came, to know it when it comes again.
type taken struct {
	sum     digest
	size    int // bytes
	version string
}

// digest stands for the bytes of a resource. Nobody outside the process knows by what seeds it is made, so that two
// resources of one digest come by chance alone: once in 10^38.
type digest [2]uint64

func (s *intake) digest(b []byte) digest {
	return digest{maphash.Bytes(s.seeds[0], b), maphash.Bytes(s.seeds[1], b)}
}

// expect makes room for what will be staged of resources that were read, if more of the rest is of their kind.
func (o *outcome) expect(read []item, rest int) {
	if o.staged != nil {
		return
	}
	n := 0
	for i := range read {
		if !read[i].read.same {
			n++
		}
	}
	if n = n * rest / len(read); n > 0 {
		o.staged, o.undo = make(map[resource]int, n), make([]func(), 0, n)
	}
}

// room is how many resources of a response maps are made for: no more than may be kept.
func (s *intake) room(r *response) int { return min(len(r.items), s.limits.Resources) }

// take stages a response: what is good of it is wanted from now on. With full, what is not in it is gone (kinds of the
// state of the world that come whole).
func (s *intake) take(k Kind, r *response, full bool) *outcome {
	if len(s.taken[k]) == 0 { // growing maps one by one would take a tenth of the time
		s.taken[k] = make(map[string]taken, s.room(r))
	}
	o := &outcome{}
	seen := make(map[string]bool, s.room(r))
	nameless := false // what has no name could be any: then nothing counts as gone
	for from := 0; from < len(r.items); from += readAhead {
		some := r.items[from:min(from+readAhead, len(r.items))]
		s.readAll(k, some)
		o.expect(some, len(r.items)-from)
		for i := range some {
			it := &some[i]
			if err := s.stage(k, it, seen, o); err != nil {
				if it.read.name == "" {
					nameless = true
					err = fmt.Errorf("resources[%d]: %w", from+i, err)
				}
				o.refuse(err)
			}
			it.read = parsed{} // it may be far larger than the resource
		}
	}
	if full && s.sorts.lists(k) && !nameless {
		for name := range s.taken[k] {
			if !seen[name] {
				s.remove(k, name, o)
			}
		}
	}
	for _, name := range r.removed {
		if _, ok := s.taken[k][name]; ok && !seen[name] {
			s.remove(k, name, o)
		}
	}
	return o
}

// readAhead is how many resources are decoded before the first of them is staged, and readAlone below how many of them
// one CPU does it as soon as several.
const (
	readAhead = 1024
	readAlone = 32
)

// readAll reads resources, on several CPUs where that is worth it.
func (s *intake) readAll(k Kind, items []item) {
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
	for range min(runtime.GOMAXPROCS(0), len(items)/readAlone) - 1 {
		all.Go(work)
	}
	work()
	all.Wait()
}

// read decodes a resource, unless it is as it came before or would be refused or ignored in any case. It changes
// nothing of the state.
func (s *intake) read(k Kind, it *item) {
	p := &it.read
	if p.name = translate.Name(it.value); it.name != "" {
		p.name = it.name
	}
	if it.typeURL != typeURLs[k] || it.ttl || len(it.value) > s.limits.Resource ||
		p.name != "" && !s.sorts.wants(k, p.name) {
		return
	}
	p.sum = s.digest(it.value)
	old, had := s.taken[k][p.name]
	if p.same = had && old.sum == p.sum && old.size == len(it.value); p.same {
		return
	}
	p.made, p.err = s.sorts.parse(k, it.value)
}

// stage makes one resource wanted.
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
	case len(it.value) > s.limits.Resource:
		return refused(k, name, "it has %d bytes; the client takes %d", len(it.value), s.limits.Resource)
	case name != "" && !s.sorts.wants(k, name):
		o.ignored++ // nobody asked for it, or it was on its way when the last that named it went
		return nil
	}
	old, had := s.taken[k][name]
	if it.read.same {
		o.unchanged++
		if old.version != it.version {
			old.version = it.version
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
	if size := s.bytes - old.size + len(it.value); size > s.limits.Bytes {
		return refused(
			k,
			name,
			"with it there would be %d bytes of resources; the client keeps %d",
			size,
			s.limits.Bytes,
		)
	}
	if it.read.err != nil {
		return it.read.err
	}
	undo, err := s.sorts.put(k, name, it.read.made, o)
	if err != nil {
		return err
	}
	s.bytes += len(it.value) - old.size
	s.taken[k][name] = taken{it.read.sum, len(it.value), it.version}
	o.changed++
	o.staged[resource{k, name}] = len(o.undo)
	o.undo = append(o.undo, func() {
		undo()
		s.forget(k, name)
		if had {
			s.bytes += old.size
			s.taken[k][name] = old
		}
	})
	return nil
}

func (s *intake) forget(k Kind, name string) {
	s.bytes -= s.taken[k][name].size
	delete(s.taken[k], name)
}

// remove makes a resource unwanted.
func (s *intake) remove(k Kind, name string, o *outcome) {
	s.forget(k, name)
	o.removed++
	s.sorts.drop(k, name, o)
}

func (s *intake) count(k Kind) int { return len(s.taken[k]) }

// versions are what the client has of a kind, for the first request of a stream of deltas.
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
