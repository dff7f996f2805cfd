package controlplane

import (
	"maps"
	"sync"
)

// renewals holds the changed certificates and roots that have not been sent to proxies yet.
type renewals struct {
	wake chan struct{} // signals that there are renewals

	mu  sync.Mutex
	ids map[string]bool // identities with a new certificate
	all bool            // the roots have changed, which concerns every proxy
}

func (r *renewals) init() { r.wake, r.ids = make(chan struct{}, 1), map[string]bool{} }

func (r *renewals) identity(id string) { r.add(map[string]bool{id: true}, false) }

func (r *renewals) roots() { r.add(nil, true) }

func (r *renewals) add(ids map[string]bool, all bool) {
	r.putBack(ids, all)
	select {
	case r.wake <- struct{}{}:
	default: // a signal is pending already
	}
}

// take returns the renewals and clears them.
func (r *renewals) take() (ids map[string]bool, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids, all = r.ids, r.all
	r.ids, r.all = map[string]bool{}, false
	return ids, all
}

// putBack adds renewals that are still to be sent, without a signal on wake.
func (r *renewals) putBack(ids map[string]bool, all bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.ids, ids)
	r.all = r.all || all
}
