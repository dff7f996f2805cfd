package xds

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"tare/internal/mesh/xds/translate"
)

// servings maps the control plane's listeners to the listeners that the data plane serves for them. There can be none
// or many: an HTTP listener becomes a listener for each address in its routes.
type servings struct {
	own     []netip.Addr // the workload's addresses
	wanted  map[string]*translate.Listener
	made    map[string]*translate.Served // by the control plane's listener: what the data plane serves for it
	owners  map[string]string            // by served listener, if its name differs: the control plane's listener
	routes  map[string]*translate.Routes
	users   map[string]map[string]bool // by routes: the listeners that name them
	changes map[string]bool            // routes that got their first user or lost their last since the map was cleared
	stale   map[string]bool            // listeners that wait for something, or must be expanded again
	blocked map[string]bool            // listeners that want an address that another listener has
	guarded map[netip.AddrPort]bool    // the guarded addresses; see translate.Served
	guards  map[netip.AddrPort]int     // by address: the number of served listeners that guard it
	extra   map[string]int             // by cluster that the data plane adds: the number of served listeners that name it
	freed   bool                       // a listener was removed, so state.again must retry the blocked ones
	arrived bool                       // a cluster has changed in a way that state.again must expand all listeners again
	reguard bool                       // guards may have changed; see state.guard
}

func newServings() servings {
	return servings{
		wanted: map[string]*translate.Listener{}, made: map[string]*translate.Served{}, owners: map[string]string{},
		routes: map[string]*translate.Routes{}, users: map[string]map[string]bool{}, changes: map[string]bool{},
		stale: map[string]bool{}, blocked: map[string]bool{}, guarded: map[netip.AddrPort]bool{},
		guards: map[netip.AddrPort]int{}, extra: map[string]int{},
	}
}

// owner returns the control plane's listener for which the data plane serves the listener with the given name.
func (v *servings) owner(name string) string {
	if owner, ok := v.owners[name]; ok {
		return owner
	}
	return name
}

// missing returns the number of routes that listeners need and that have not been received.
func (v *servings) missing() (n int) {
	for name := range v.users {
		if v.routes[name] == nil {
			n++
		}
	}
	return n
}

// arrives records that a cluster is added, removed or changed. What is served for a listener depends on whether its
// clusters pass connections through unchanged, and on whether they have endpoints.
func (v *servings) arrives(old, c *translate.Cluster) {
	kind := func(c *translate.Cluster) int {
		switch {
		case c == nil:
			return 0
		case c.Discovery == translate.Original:
			return 2
		case c.Empty():
			return 3
		}
		return 1
	}
	if a, b := kind(old), kind(c); a == b || a < 2 && b < 2 {
		return // an ordinary cluster was added or removed: listeners that wait for it are expanded in any case
	}
	v.arrived = true
}

func (s *state) stageListener(name string, l *translate.Listener, o *outcome) (undo func(), err error) {
	if l.Name != name {
		return nil, refused(Listeners, name, "name: it is %.200q", l.Name)
	}
	old := s.serving.wanted[name]
	if err := s.setListener(name, l, o); err != nil {
		_ = s.setListener(name, old, &outcome{}) // cannot fail: it was served before
		return nil, err
	}
	o.warned = append(o.warned, l.Warnings...)
	return func() { _ = s.setListener(name, old, &outcome{}) }, nil
}

// setListener makes l the wanted form of a listener, or removes the listener if l is nil.
func (s *state) setListener(name string, l *translate.Listener, o *outcome) error {
	v := &s.serving
	var routes []string
	if l != nil {
		routes = l.Routes
	}
	still := make(map[string]bool, len(routes))
	for _, r := range routes {
		still[r] = true
		if link(v.users, r, name) {
			v.changes[r] = true
		}
	}
	if old := v.wanted[name]; old != nil {
		for _, r := range old.Routes {
			if !still[r] && unlink(v.users, r, name) {
				v.changes[r] = true
			}
		}
	}
	if l == nil {
		delete(v.wanted, name)
		delete(v.stale, name)
		s.serve(name, nil, o)
		v.freed = true
		return nil
	}
	v.wanted[name] = l
	return s.expand(name, o)
}

// expand updates what is served for a listener. As long as something that the listener needs is missing, expand leaves
// the served listeners as they are.
func (s *state) expand(name string, o *outcome) error {
	v := &s.serving
	made, err := v.wanted[name].Expand(translate.Env{
		Routes:  func(name string) *translate.Routes { return v.routes[name] },
		Cluster: func(name string) *translate.Cluster { return s.clusters[name] },
		Own:     v.own,
	})
	delete(v.stale, name)
	switch {
	case err != nil:
		return err
	case made == nil:
		v.stale[name] = true
		return nil
	}
	s.serve(name, made, o)
	return nil
}

// serve replaces the listeners that are served for a control plane's listener.
func (s *state) serve(name string, made *translate.Served, o *outcome) {
	v := &s.serving
	old := v.made[name]
	if old == nil {
		old = &translate.Served{}
	}
	delete(v.blocked, name)
	next := &translate.Served{}
	if made != nil {
		o.warned = append(o.warned, made.Warnings...)
		*next = *made
	}
	stays := map[string]bool{}
	for _, c := range next.Clusters {
		stays[c.Name] = true
		if now := s.clusters[c.Name]; now == nil || !reflect.DeepEqual(now, c) {
			s.want(c.Name, c)
		}
	}
	for _, l := range next.Listeners {
		if l.Name == name || v.free(s, name, placeOf(l), o) {
			stays[l.Name] = true
		}
	}
	for _, l := range old.Listeners {
		if !stays[l.Name] && (v.owner(l.Name) == name) {
			delete(v.owners, l.Name)
			s.wantListener(l.Name, nil)
		}
	}
	for _, l := range next.Listeners {
		if !stays[l.Name] {
			continue
		}
		if l.Name != name {
			v.owners[l.Name] = name
		}
		if now := s.listeners[l.Name]; now == nil || now != l && !reflect.DeepEqual(now, l) {
			s.wantListener(l.Name, l)
		}
	}
	for _, c := range next.Clusters {
		v.extra[c.Name]++
	}
	for _, c := range old.Clusters {
		if v.extra[c.Name]--; v.extra[c.Name] == 0 {
			delete(v.extra, c.Name)
			s.want(c.Name, nil)
		}
	}
	if made == nil {
		delete(v.made, name)
	} else {
		v.made[name] = next
	}
	for _, at := range next.Guarded {
		v.guards[at]++
	}
	for _, at := range old.Guarded {
		if v.guards[at]--; v.guards[at] == 0 {
			delete(v.guards, at)
		}
	}
	v.reguard = v.reguard || len(old.Guarded)+len(next.Guarded) > 0
}

// free reports whether no other listener has an address. If one has, free adds a warning to o and marks the named
// listener as blocked.
func (v *servings) free(s *state, name string, at place, o *outcome) bool {
	for other := range s.places[at] {
		if owner := v.owner(other); owner != name {
			o.warned = append(o.warned, &translate.Warning{Kind: Listeners.one(), Name: name, Field: "address",
				What: fmt.Sprintf("listener %.200q has %s %s: connections go to that listener", owner, at.protocol, at.address)})
			v.blocked[name] = true
			return false
		}
	}
	return true
}

// guard updates the set of the workload's addresses that are guarded. If the set changes, it marks all clusters as
// dirty, because they may have endpoints at these addresses.
func (s *state) guard() {
	v := &s.serving
	if !v.reguard {
		return
	}
	v.reguard = false
	same := len(v.guards) == len(v.guarded)
	for at := range v.guards {
		same = same && v.guarded[at]
	}
	if same {
		return
	}
	v.guarded = make(map[netip.AddrPort]bool, len(v.guards))
	for at := range v.guards {
		v.guarded[at] = true
	}
	for name := range s.clusters {
		s.dirtyClusters[name] = true
	}
}

func (s *state) stageRoutes(name string, r *translate.Routes, o *outcome) (undo func(), err error) {
	if r.Name != name {
		return nil, refused(Routes, name, "name: it is %.200q", r.Name)
	}
	old := s.serving.routes[name]
	s.setRoutes(name, r)
	o.warned = append(o.warned, r.Warnings...)
	return func() { s.setRoutes(name, old) }, nil
}

// setRoutes makes r the wanted form of routes, or removes them if r is nil. It marks the listeners that name them as
// stale.
func (s *state) setRoutes(name string, r *translate.Routes) {
	if r == nil {
		delete(s.serving.routes, name)
	} else {
		s.serving.routes[name] = r
	}
	for l := range s.serving.users[name] {
		s.serving.stale[l] = true
	}
}

// again expands again the listeners that other changes affect, and the listeners that have waited for something. If a
// listener can no longer be served, again records a refusal, and the data plane keeps what it serves for the listener.
func (s *state) again(o *outcome) {
	v := &s.serving
	if v.freed { // another listener may have left its address
		maps.Copy(v.stale, v.blocked)
	}
	if v.arrived {
		for name := range v.wanted {
			v.stale[name] = true
		}
	}
	v.freed, v.arrived = false, false
	for _, name := range slices.Sorted(maps.Keys(v.stale)) {
		if err := s.expand(name, o); err != nil {
			o.refuse(err)
		}
	}
}
