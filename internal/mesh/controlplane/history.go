package controlplane

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"tare/internal/lib/pace"
)

// Change is one change of the mesh and how the proxies it concerned received it. Responses that data planes request,
// by connecting or subscribing to a name, do not count. Times are seconds since the change was set; FirstSent and
// LastSent are 0 while Responses is 0, and LastAnswer is 0 while Answers is 0.
type Change struct {
	At        time.Time `json:"at"`
	Responses int       `json:"responses"` // sent because of the change
	Proxies   int       `json:"proxies"`   // distinct node ids that got them; at most mostProxies
	Others    int       `json:"others"`    // responses to node ids that Proxies does not count
	Answers   int       `json:"answers"`   // acknowledged or refused
	Refused   int       `json:"refused"`   // answers that were refusals
	FirstSent float64   `json:"first_sent_seconds"`
	LastSent  float64   `json:"last_sent_seconds"`
	// LastAnswer is when the last answer so far arrived. An answer that comes after eight more responses of its type does
	// not count.
	LastAnswer float64 `json:"last_answer_seconds"`
}

// Limits of a history: the number of changes, and of distinct proxies in each. If the mesh's configuration lists no
// proxies, a peer may choose any id, and a different one for each stream.
const (
	mostChanges = 100
	mostProxies = 10_000
)

// history holds the last changes. Its methods may be called concurrently.
type history struct {
	mu      sync.Mutex
	seed    maphash.Seed
	changes []*entry // sorted by since
}

func newHistory() *history { return &history{seed: maphash.MakeSeed()} }

type entry struct {
	Change
	since   int64               // ns by pace.Now
	proxies map[uint64]struct{} // hashes of node ids, because the ids can be long
}

// of returns the change that was set at the given time (ns by pace.Now), and adds it if it is new. If the history is
// full and the change is older than all changes in it, of returns nil. The caller must hold mu.
func (h *history) of(since int64) *entry {
	i, found := slices.BinarySearchFunc(h.changes, since, func(e *entry, since int64) int {
		return cmp.Compare(e.since, since)
	})
	if found {
		return h.changes[i]
	}
	if i == 0 && len(h.changes) == mostChanges {
		return nil
	}
	e := &entry{since: since, proxies: map[uint64]struct{}{},
		Change: Change{At: time.Now().Add(time.Duration(since - pace.Now()))}}
	h.changes = slices.Insert(h.changes, i, e)
	if len(h.changes) > mostChanges {
		h.changes = slices.Delete(h.changes, 0, 1)
	}
	return e
}

// note calls the given function with the change that was set at the given time, unless the change is no longer kept.
func (h *history) note(since int64, do func(*entry)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.of(since); e != nil {
		do(e)
	}
}

func (h *history) sent(s Sent) {
	if s.Asked {
		return
	}
	h.note(s.Since, func(e *entry) {
		after := float64(s.Time-s.Since) / 1e9
		if e.Responses == 0 {
			e.FirstSent = after
		}
		e.FirstSent, e.LastSent = min(e.FirstSent, after), max(e.LastSent, after)
		e.Responses++
		id := maphash.String(h.seed, s.Node)
		if _, known := e.proxies[id]; !known && len(e.proxies) == mostProxies {
			e.Others++
			return
		}
		e.proxies[id] = struct{}{}
		e.Proxies = len(e.proxies)
	})
}

func (h *history) answered(a Answer) {
	if a.Asked {
		return
	}
	h.note(a.Since, func(e *entry) {
		e.Answers++
		if a.Refused != "" {
			e.Refused++
		}
		e.LastAnswer = max(e.LastAnswer, float64(a.Time-a.Since)/1e9)
	})
}

// list returns the changes that are kept, the last one first.
func (h *history) list() []Change {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Change, 0, len(h.changes))
	for _, e := range slices.Backward(h.changes) {
		out = append(out, e.Change)
	}
	return out
}
