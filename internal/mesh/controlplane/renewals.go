package controlplane

import (
	"maps"
	"sync"
)

// renewals are the certificates and roots that have changed and that proxies have not been told.
type renewals struct {
	wake chan struct{} // there is something

	mu  sync.Mutex
	ids map[string]bool // identities with another certificate
	all bool            // the roots, which concern everybody
}

func (r *renewals) init() { r.wake, r.ids = make(chan struct{}, 1), map[string]bool{} }

func (r *renewals) identity(id string) { r.add(map[string]bool{id: true}, false) }

func (r *renewals) roots() { r.add(nil, true) }

func (r *renewals) add(ids map[string]bool, all bool) {
	r.putBack(ids, all)
	select {
	case r.wake <- struct{}{}:
	default: // somebody is about to look
	}
}

// take gives what there is, and has nothing left.
func (r *renewals) take() (ids map[string]bool, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids, all = r.ids, r.all
	r.ids, r.all = map[string]bool{}, false
	return ids, all
}

// putBack keeps what could not be told for the next time.
func (r *renewals) putBack(ids map[string]bool, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.ids, ids)
	r.all = r.all || all
}
