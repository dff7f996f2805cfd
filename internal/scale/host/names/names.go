// Package names finds what people call a control group: the pod and container, or the systemd unit, that it belongs
// to.
//
// It uses neither the Kubernetes API nor a runtime's socket. The path of a group shows which container or unit it
// belongs to (internal/scale/host/sandbox has the table), and the files that runtimes keep for themselves contain the
// names. Start reading at Resolver.Of.
//
// Anyone who may create groups or files could claim names of others. Therefore the files must belong to root. For
// groups below user@UID.service, which that user creates, only that user's files are read. Inside a container that has
// a name no further names are looked up, because the groups there were created within it.
package names

import (
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"tare/internal/lib/files"
	"tare/internal/lib/text"
	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
)

// Sandbox is the name of the container that holds a pod open (the pause container), or of the virtual machine that
// stands for the pod.
const Sandbox = "(sandbox)"

// Limits of a name; longer text is cut and ends with "...".
const (
	maxText   = 256 // bytes of each text
	maxLabels = 32  // the first ones, ordered by key
)

// Options configures a Resolver. The zero value stands for the machine that this process runs on.
type Options struct {
	Root string // where the machine's files are: empty for /, else a mount in a container (/host) or a tree of test files
}

// Resolver finds names and caches them. It is safe for concurrent use.
type Resolver struct {
	mu     sync.Mutex
	tree   files.Tree
	known  map[string]*entry          // by path
	gone   int                        // entries deleted from known since that map was created
	pods   map[string]pod             // by uid
	places map[uint32]*sandbox.Places // by the user who runs an engine; nil if the user's home is unknown
	fresh  time.Time                  // when places were last refreshed
	now    func() time.Time
}

// entry holds what is known about one path.
type entry struct {
	name    ledger.Name
	shared  *ledger.Name // a copy of name for ledgers, once it is settled
	whose   sandbox.Whose
	user    uint32 // the user who creates the groups
	outer   string // path of the container around it; empty if there is none
	settled bool   // the name is final
	retry   time.Time
	wait    time.Duration     // time from one attempt to the next
	why     *sandbox.NotFound // why the last attempt failed; nil before the first
}

// pod holds what the containers of a pod show about the pod.
type pod struct {
	namespace, name string
	labels          map[string]string // of the pod's sandbox
}

// Time until a container without a name is looked up again, initially and at most. Its files may be written after the
// group was created, and their directory may be mounted later.
const (
	firstWait = 2 * time.Second
	lastWait  = time.Minute
)

// maxKnown bounds the cached paths, if callers do not forget any.
const maxKnown = 1 << 16

// Open returns a Resolver. It keeps nothing open.
func Open(o Options) *Resolver {
	return &Resolver{tree: files.Tree{Root: o.Root}, known: map[string]*entry{}, pods: map[string]pod{},
		places: map[uint32]*sandbox.Places{}, now: time.Now}
}

// Of returns the name of a group, given its path as in the ledger. It reads files when it first sees a container, and
// repeatedly until it has found the name. A pod's own group gets the name that its containers show, so call Of for all
// groups before using the names. The caller must not modify the labels.
func (r *Resolver) Of(group string) ledger.Name {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of(group).name
}

func (r *Resolver) of(group string) *entry {
	e := r.known[group]
	if e == nil {
		e = r.enter(group)
	}
	if !e.settled {
		r.look(e)
	}
	return e
}

// Fill sets the names of all groups and sandboxes of a ledger, forgets groups that the ledger does not list, and warns
// of containers without a name. It must be called before rules are applied, which may select by name. The caller must
// not modify the names: ledgers share them.
func (r *Resolver) Fill(l *ledger.Ledger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := make(map[string]bool, len(l.Cgroups))
	for i := range l.Cgroups {
		there[l.Cgroups[i].Path] = true
		r.of(l.Cgroups[i].Path)
	}
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		g.Name = r.of(g.Path).share()
	}
	r.fillSandboxes(l)
	r.forget(func(path string) bool { return there[path] })
	l.Warnings = append(l.Warnings, r.warnings()...)
}

// fillSandboxes sets the names of the sandboxes' containers, and of pods without a name.
func (r *Resolver) fillSandboxes(l *ledger.Ledger) {
	if len(l.Sandboxes) == 0 {
		return
	}
	containers, pods := map[string]*ledger.Name{}, map[string]*ledger.Name{}
	for i := range l.Cgroups {
		if n := l.Cgroups[i].Name; n != nil {
			containers[n.ContainerID], pods[n.PodUID] = n, n
		}
	}
	for i := range l.Sandboxes {
		s := &l.Sandboxes[i]
		for j := range s.ByContainer {
			if n := containers[s.ByContainer[j].ID]; n != nil {
				s.ByContainer[j].Name = n.Container
			}
		}
		if s.Pod != nil && s.Pod.Name == "" && pods[s.Pod.UID] != nil {
			s.Pod.Namespace, s.Pod.Name = pods[s.Pod.UID].Namespace, pods[s.Pod.UID].Pod
		}
	}
}

// share returns the name for a ledger; nil if nothing is known.
func (e *entry) share() *ledger.Name {
	n := &e.name
	switch {
	case e.shared != nil:
		return e.shared
	case n.Pod == "" && n.PodUID == "" && n.Container == "" && n.ContainerID == "" && n.Unit == "":
		return nil
	}
	shared := *n
	if e.settled {
		e.shared = &shared
	}
	return &shared
}

// forget drops groups for which live returns false, and pods and users without remaining groups.
func (r *Resolver) forget(live func(path string) bool) {
	pods, users := map[string]bool{}, map[uint32]bool{}
	for path, e := range r.known {
		if !live(path) {
			delete(r.known, path)
			r.gone++
			continue
		}
		pods[e.whose.Pod], users[e.user] = true, true
	}
	// A map keeps room for the most entries that it ever had.
	if r.gone > len(r.known) {
		r.known, r.gone = maps.Collect(maps.All(r.known)), 0
	}
	maps.DeleteFunc(r.pods, func(uid string, _ pod) bool { return !pods[uid] })
	maps.DeleteFunc(r.places, func(uid uint32, _ *sandbox.Places) bool { return !users[uid] })
}

// enter creates the entry of a path that was not seen before.
func (r *Resolver) enter(group string) *entry {
	if len(r.known) >= maxKnown {
		clear(r.known)
		clear(r.pods)
	}
	e := &entry{whose: sandbox.WhoseIs(group), user: userOf(group), wait: firstWait}
	r.known[group] = e
	w := &e.whose
	e.name.Top = group
	if !path.IsAbs(group) || path.Clean(group) != group { // not a path as the kernel writes it
		e.whose, e.settled = sandbox.Whose{}, true
		return e
	}
	e.name.PodUID = w.Pod
	switch {
	case w.ID != "" && !beside(w.Place):
		e.name.ContainerID, e.name.Top = clip(w.ID), w.IDGroup
		if !generated(w.ID) {
			e.name.Container = clip(w.ID) // chosen by a person
		}
	case w.Place == sandbox.PlacePod:
		e.name.Top = w.PodPath
	default: // including what a runtime places beside a container
		if unit, top := unitOf(group); unit != "" {
			e.name.Unit, e.name.Top = unit, top
		}
	}
	e.outer = outside(w)
	e.settled = !generated(w.ID) && w.Pod == "" && e.outer == ""
	return e
}

// generated reports whether an id is one that engines generate. Others must not be used in file names.
func generated(id string) bool {
	const length = 64
	return len(id) == length && strings.Trim(id, "0123456789abcdef") == ""
}

// beside reports whether a group holds what a runtime places beside a container, which belongs to the pod and not to
// the container.
func beside(p sandbox.Place) bool { return p == sandbox.PlaceHelper || p == sandbox.PlaceOverhead }

// outside returns the group of the container around a container or pod: a node of a cluster may be a container.
func outside(w *sandbox.Whose) string {
	top := w.IDGroup
	if w.PodPath != "" {
		top = w.PodPath
	}
	if top == "" {
		return ""
	}
	return sandbox.WhoseIs(path.Dir(top)).IDGroup
}

// look tries to complete a name.
func (r *Resolver) look(e *entry) {
	w := &e.whose
	if e.outer != "" {
		if outer := r.of(e.outer); outer.name.Container != "" {
			e.name, e.settled = outer.name, true
			return
		}
	}
	if p, ok := r.pods[w.Pod]; ok && w.Pod != "" {
		e.name.Namespace, e.name.Pod = p.namespace, p.name
		if w.ID == "" || beside(w.Place) {
			e.name.Labels, e.settled = p.labels, true
			return
		}
	}
	now := r.now()
	if !generated(w.ID) || now.Before(e.retry) {
		return
	}
	if now.Sub(r.fresh) >= firstWait {
		r.fresh = now
		for _, p := range r.places {
			if p != nil {
				p.Refresh()
			}
		}
	}
	about, why := r.about(e, w.ID, w.Engine)
	if why != nil {
		e.retry, e.wait = now.Add(e.wait), min(2*e.wait, lastWait)
		e.why = why
		return
	}
	r.settle(e, about)
}

// settle completes the name from what was found.
func (r *Resolver) settle(e *entry, about sandbox.About) {
	w, n := &e.whose, &e.name
	e.settled = true
	n.Namespace, n.Pod = clip(about.Pod.Namespace), clip(about.Pod.Name)
	of := r.podOf(e, about)
	n.Labels = of.labels
	if beside(w.Place) {
		return
	}
	n.Image = clip(about.Image)
	if about.IsSandbox {
		n.Container = Sandbox
		return
	}
	n.Container = clip(about.Container)
	if own := labels(about.Labels); len(own) > 0 {
		n.Labels = bounded(own, of.labels)
	}
}

// podOf returns the pod of a container. The first container that is found determines the pod's name.
func (r *Resolver) podOf(e *entry, about sandbox.About) pod {
	if about.Pod.Name == "" {
		return pod{}
	}
	p, known := r.pods[e.whose.Pod]
	if known && e.whose.Pod != "" {
		return p
	}
	p = pod{namespace: e.name.Namespace, name: e.name.Pod}
	switch {
	case about.IsSandbox:
		p.labels = bounded(labels(about.Labels), nil)
	case about.Labels != nil && generated(about.Sandbox): // the engine keeps the pod's labels with its sandbox
		if s, why := r.about(e, about.Sandbox, e.whose.Engine); why == nil {
			p.labels = bounded(labels(s.Labels), nil)
		}
	}
	if e.whose.Pod != "" {
		r.pods[e.whose.Pod] = p
	}
	return p
}

// about reads the files of the group's engine.
func (r *Resolver) about(e *entry, id, engine string) (sandbox.About, *sandbox.NotFound) {
	places, known := r.places[e.user]
	if !known {
		places = r.placesOf(e.user)
		r.places[e.user] = places
	}
	if places == nil {
		return sandbox.About{}, &sandbox.NotFound{}
	}
	return places.About(id, engine)
}

// placesOf returns where the engines of a user keep their files; nil if the user's home is unknown.
func (r *Resolver) placesOf(user uint32) *sandbox.Places {
	places := &sandbox.Places{Tree: r.tree, User: user}
	if user != 0 {
		if places.Tree.Below = r.home(user); places.Tree.Below == "" {
			return nil
		}
	}
	return places
}

// internal lists the prefixes of label keys that users do not set: engines repeat names of pods and containers in them,
// or store the annotations of Kubernetes.
var internal = []string{"io.kubernetes.", "annotation."}

// labels returns the labels that users set.
func labels(all map[string]string) map[string]string {
	own := map[string]string{}
	for k, v := range all {
		if !slices.ContainsFunc(internal, func(p string) bool { return strings.HasPrefix(k, p) }) {
			own[k] = v
		}
	}
	return own
}

// bounded merges two sets of labels, of which the first takes precedence, and applies the limits.
func bounded(first, second map[string]string) map[string]string {
	joined := maps.Clone(second)
	if joined == nil {
		joined = map[string]string{}
	}
	maps.Copy(joined, first)
	if len(joined) == 0 {
		return nil
	}
	out := make(map[string]string, min(len(joined), maxLabels))
	for _, k := range slices.Sorted(maps.Keys(joined)) {
		if len(out) == maxLabels {
			break
		}
		if _, is := out[clip(k)]; !is {
			out[clip(k)] = clip(joined[k])
		}
	}
	return out
}

// clip makes text safe to display, with at most maxText bytes.
func clip(s string) string { return text.ClipLine(s, maxText-len("...")) }
