package xds

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// Ref names a resource.
type Ref struct {
	Kind Kind
	Name string
}

// Resource is one as its Consumer has read it.
type Resource struct {
	Name  string
	Value any
	// Needs are the resources without which it is of no use: it is put to work once they are, or after Timeouts.Need.
	// Endpoints, routes and secrets are asked for because somebody needs them.
	Needs []Ref
	Place string // that no other of its kind may have, such as an address; empty: none
}

// Active is a resource that is put to work, or changed.
type Active struct {
	Ref
	Value any
}

// Update is what is new, in the order of kinds in which resources need each other (what is needed comes first), and
// what is gone.
type Update struct {
	Set     []Active
	Removed []Ref
}

// Failure is a resource that the data plane cannot have.
type Failure struct {
	Ref
	Err error
}

// Consumer is a data plane with a translation of its own.
type Consumer interface {
	// Parse reads a resource. It is called by several goroutines at a time, and must not keep b. An error refuses it.
	Parse(k Kind, b []byte) (Resource, error)
	// Apply puts resources to work. It is called by one goroutine. What fails is as it was before, and refused; the
	// rest is made.
	Apply(ctx context.Context, u Update) []Failure
}

// graph is what the control plane wants and what a Consumer has, by what needs what. A resource is put to work when all
// that it needs is, or its time is up; one that is no longer wanted goes when nothing at work needs it.
type graph struct {
	intake
	consumer Consumer
	need     time.Duration

	wanted map[Ref]*Resource
	active map[Ref]*Resource
	users  map[Ref]int // wanted resources, and active ones, that need it
	places map[Ref]map[string]bool
	dirty  map[Ref]bool // those whose active form may not be the wanted one
	late   map[Ref]bool // they have waited for long enough
	asked  [kinds]map[string]bool
}

func newGraph(o Options) *graph {
	g := &graph{consumer: o.Consumer, need: o.Timeouts.Need, wanted: map[Ref]*Resource{}, active: map[Ref]*Resource{},
		users: map[Ref]int{}, places: map[Ref]map[string]bool{}, dirty: map[Ref]bool{}, late: map[Ref]bool{}}
	g.intake = newIntake(o.Limits, g)
	for k := range g.asked {
		g.asked[k] = map[string]bool{}
	}
	return g
}

// first is the order in which resources are put to work.
var first = [kinds]int{Secrets: 0, Endpoints: 1, Clusters: 2, Routes: 3, Listeners: 4}

func inOrder(a, b Ref) int {
	return cmp.Or(cmp.Compare(first[a.Kind], first[b.Kind]), strings.Compare(a.Name, b.Name))
}

func (*graph) kinds() []Kind { return []Kind{Clusters, Endpoints, Listeners, Routes, Secrets} }

func (*graph) lists(k Kind) bool { return k == Clusters || k == Listeners }

func (g *graph) wants(k Kind, name string) bool { return g.lists(k) || g.users[Ref{k, name}] > 0 }

func (g *graph) names(k Kind) (out []string) {
	for r, n := range g.users {
		if r.Kind == k && n > 0 && !g.lists(k) {
			out = append(out, r.Name)
		}
	}
	slices.Sort(out)
	return out
}

func (g *graph) parse(k Kind, b []byte) (any, error) {
	r, err := g.consumer.Parse(k, b)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

func (g *graph) put(k Kind, name string, made any, _ *outcome) (undo func(), err error) {
	r := made.(*Resource)
	if r.Name != name {
		return nil, refused(k, name, "name: it is %.200q", r.Name)
	}
	at := Ref{k, name}
	old := g.wanted[at]
	g.want(at, r)
	return func() { g.want(at, old) }, nil
}

// take stages a response, and refuses of what it brought those that want a place that another one wants: what was there
// before stays.
func (g *graph) take(k Kind, r *response, full bool) *outcome {
	o := g.intake.take(k, r, full)
	var wanted []string
	for at := range o.staged {
		if place := g.wanted[Ref{k, at.name}].Place; place != "" {
			wanted = append(wanted, place)
		}
	}
	contests[string]{
		members: func(place string) map[string]bool { return g.places[Ref{k, place}] },
		staged: func(name string) bool {
			_, ok := o.staged[resource{k, name}]
			return ok
		},
		reject: func(place, name, stays string) (before string, was bool) {
			o.refuse(refused(k, name, "%s %.200q has %.200s", k.one(), stays, place))
			g.undo(Ref{k, name}, o)
			if w := g.wanted[Ref{k, name}]; w != nil && w.Place != "" {
				return w.Place, true
			}
			return "", false
		},
	}.settle(wanted)
	return o
}

func (g *graph) drop(k Kind, name string, _ *outcome) {
	if g.lists(k) {
		g.want(Ref{k, name}, nil)
	} // else it stays until nobody needs it: the last that is known is better than none
}

// want makes r the wanted form of a resource; nil for none.
func (g *graph) want(at Ref, r *Resource) {
	g.dirty[at] = true
	delete(g.late, at)
	if old := g.wanted[at]; old != nil {
		g.use(old, -1)
		if old.Place != "" {
			unlink(g.places, Ref{at.Kind, old.Place}, at.Name)
		}
	}
	if r == nil {
		delete(g.wanted, at)
		return
	}
	g.wanted[at] = r
	g.use(r, 1)
	if r.Place != "" {
		link(g.places, Ref{at.Kind, r.Place}, at.Name)
	}
}

// use counts who needs what.
func (g *graph) use(r *Resource, by int) {
	for _, n := range r.Needs {
		g.users[n] += by
		if g.users[n] == 0 {
			delete(g.users, n)
		}
		if !g.lists(n.Kind) {
			g.asked[n.Kind][n.Name] = true // its number may have come from 0, or to it
		} else if g.wanted[n] == nil && g.active[n] != nil {
			g.dirty[n] = true
		}
	}
}

// ready are the dirty resources that can be put to work now, what is needed before what needs it.
func (g *graph) ready() (out []Ref) {
	can := map[Ref]bool{}
	for r := range g.dirty {
		if g.wanted[r] != nil {
			can[r] = true
		}
	}
	for again := true; again; {
		again = false
		for r := range can {
			if g.late[r] ||
				!slices.ContainsFunc(g.wanted[r].Needs, func(n Ref) bool { return g.active[n] == nil && !can[n] }) {
				continue
			}
			delete(can, r)
			again = true
		}
	}
	return slices.SortedFunc(maps.Keys(can), inOrder)
}

// settle puts to work what can be, and takes away what nothing needs.
func (g *graph) settle(ctx context.Context, made func(error) error, o *outcome) error {
	for range settleTries {
		u := Update{}
		for _, r := range g.ready() {
			u.Set = append(u.Set, Active{r, g.wanted[r].Value})
		}
		next := g.after(u)
		for r := range g.dirty {
			if g.wanted[r] == nil && g.active[r] != nil && next[r] == 0 {
				u.Removed = append(u.Removed, r)
			}
		}
		slices.SortFunc(u.Removed, func(a, b Ref) int { return inOrder(b, a) })
		if len(u.Set)+len(u.Removed) == 0 {
			break
		}
		failed := g.consumer.Apply(ctx, u)
		var err error
		if len(failed) > 0 {
			err = failed[0].Err
		}
		if err := made(err); fatal(err) {
			return err
		}
		g.commit(u, failed)
		for _, f := range failed {
			g.undo(f.Ref, o)
			o.refuse(storeRefusal(resource{f.Kind, f.Name}, f.Err))
		}
	}
	for r := range g.dirty {
		if g.wanted[r] == nil && g.active[r] == nil {
			delete(g.dirty, r)
		}
	}
	return nil
}

// settleTries bounds how often what became possible by one update is made by a next.
const settleTries = 8

// after is who will need what of the resources at work once u is made.
func (g *graph) after(u Update) map[Ref]int {
	set := make(map[Ref]bool, len(u.Set))
	for _, r := range u.Set {
		set[r.Ref] = true
	}
	users := map[Ref]int{}
	count := func(r *Resource) {
		for _, n := range r.Needs {
			users[n]++
		}
	}
	for at, r := range g.active {
		if !set[at] && g.wanted[at] != nil {
			count(r)
		}
	}
	for _, r := range u.Set {
		count(g.wanted[r.Ref])
	}
	return users
}

func (g *graph) commit(u Update, failed []Failure) {
	not := make(map[Ref]bool, len(failed))
	for _, f := range failed {
		not[f.Ref] = true
	}
	for _, r := range u.Set {
		if not[r.Ref] {
			continue
		}
		g.active[r.Ref] = g.wanted[r.Ref]
		delete(g.dirty, r.Ref)
		delete(g.late, r.Ref)
	}
	for _, r := range u.Removed {
		delete(g.active, r)
		delete(g.dirty, r)
	}
	for r := range g.active { // what became free by this goes with the next
		if g.wanted[r] == nil {
			g.dirty[r] = true
		}
	}
}

// undo takes back what the data plane refused.
func (g *graph) undo(at Ref, o *outcome) {
	if i, staged := o.staged[resource{at.Kind, at.Name}]; staged {
		o.undo[i]()
		delete(o.staged, resource{at.Kind, at.Name})
		o.changed--
	} else { // it waited for what came now: the form at work stays until it comes again
		g.forget(at.Kind, at.Name)
		g.want(at, g.active[at])
	}
	if g.wanted[at] == g.active[at] {
		delete(g.dirty, at)
	}
}

// sweep forgets what was asked for and is needed by nothing any more, and tells the names that came and went.
func (g *graph) sweep() (named [kinds][]string, _ []string) {
	for k := range g.asked {
		for name := range g.asked[k] {
			at := Ref{Kind(k), name}
			if g.users[at] == 0 && g.wanted[at] != nil {
				g.forget(Kind(k), name)
				g.want(at, nil)
			}
			named[k] = append(named[k], name)
		}
		clear(g.asked[k])
	}
	return named, nil
}

func (g *graph) waiting() (n int) {
	for r := range g.dirty {
		if r.Kind == Listeners && g.wanted[r] != nil {
			n++
		}
	}
	return n
}

// missing is how many routes somebody needs that have not come.
func (g *graph) missing() (n int) {
	for _, name := range g.names(Routes) {
		if g.wanted[Ref{Routes, name}] == nil {
			n++
		}
	}
	return n
}

// hungry are the resources that wait for what they need.
func (g *graph) hungry() map[Ref]bool {
	var out map[Ref]bool
	for r := range g.dirty {
		if g.wanted[r] != nil && !g.late[r] {
			if out == nil {
				out = map[Ref]bool{}
			}
			out[r] = true
		}
	}
	return out
}

// overdue says whether what is hungry has waited for long enough, and lets it be without then.
func (g *graph) overdue(r Ref, waited time.Duration) bool {
	if waited <= g.need || !g.dirty[r] || g.wanted[r] == nil {
		return false
	}
	g.late[r] = true
	return true
}
