package sandbox

import (
	"cmp"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"tare/internal/lib/files"
	"tare/internal/lib/lists"
	"tare/internal/scale/host/cgroup"
)

// gathering sorts processes into sandboxes.
//
// Names (of containers, sandboxes, pods) that belong to the same sandbox are united, based on what cannot be forged
// from within a container: the paths of groups and the state of runtimes. Command lines are used after that, and only
// if they do not contradict it, because an application may call itself anything.
type gathering struct {
	r      *Reader
	parent map[string]string   // union-find of names
	pods   map[string]bool     // uids
	nested map[string][]string // by id: paths of groups with that id
	names  map[string]string   // names of the owners of groups whose paths show none but which state lists, by path
	byPID  map[int]string      // names of the owners of processes that state lists, by PID
	role   map[int]role
	of     map[*known]string // the name of the sandbox, container or pod that the process belongs to
	signs  map[*known][]Sign
	mute   map[*known]bool // its command line contradicts its group and is ignored
	late   []*known
}

// gather sorts the known processes into sandboxes and stores the result in r.census. It also starts reading the
// counters of their groups.
func (r *Reader) gather() {
	g := &gathering{r: r, parent: map[string]string{}, pods: map[string]bool{}, nested: map[string][]string{},
		names: map[string]string{}, byPID: map[int]string{},
		role: map[int]role{}, of: map[*known]string{}, signs: map[*known][]Sign{}, mute: map[*known]bool{}}
	all := slices.SortedFunc(maps.Values(r.known), func(a, b *known) int { return cmp.Compare(a.PID, b.PID) })
	r.named.list(files.Tree{Root: r.root})
	g.unite(all)
	for _, k := range all {
		g.assign(k)
	}
	for _, k := range g.late {
		g.settle(k)
	}
	g.inherit(all)
	r.census = g.census(all)
	r.examples = map[cgroup.Charged]*known{}
	for _, k := range all {
		if k.process != nil && k.sandbox != nil && k.claim.rule == nil && k.process.Component == Workload &&
			g.descends(k) == "" && r.examples[k.charged] == nil {
			r.examples[k.charged] = k
		}
	}
	r.watch()
}

// find returns the name that stands for all names with which the given one has been united.
func (g *gathering) find(name string) string {
	root := name
	for g.parent[root] != "" {
		root = g.parent[root]
	}
	for name != root {
		next := g.parent[name]
		g.parent[name] = root
		name = next
	}
	return root
}

func (g *gathering) union(a, b string) {
	if a, b = g.find(a), g.find(b); a != b {
		g.parent[max(a, b)] = min(a, b) // "id:" sorts before "pod:"
	}
}

// unite unites names using groups and state.
func (g *gathering) unite(all []*known) {
	ids := map[string]bool{}
	for _, k := range all {
		for _, w := range g.locations(k) {
			if w.pod != "" {
				g.pods[w.pod] = true
			}
			if w.id == "" {
				continue
			}
			ids[w.id] = true
			g.nested[w.id] = append(g.nested[w.id], w.idPath)
			if w.pod != "" {
				g.union(idKey(w.id), podKey(w.pod))
			}
		}
		if id := k.claim.id; id != "" {
			ids[id] = true
		}
	}
	for _, id := range g.r.table.listed(g.r.root) {
		ids[id] = true
	}
	ends := map[string][]string{} // names by path suffix, if state has only that
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		s := g.r.state(id)
		if s == nil {
			continue
		}
		if s.Sandbox != "" {
			g.union(idKey(id), idKey(s.Sandbox))
		}
		if s.Pod.UID != "" {
			g.pods[s.Pod.UID] = true
			g.union(idKey(id), podKey(s.Pod.UID))
		}
		for _, p := range s.groups {
			w := g.r.where(g.identity(p))
			if w.pod != "" {
				g.pods[w.pod] = true
				g.union(idKey(id), podKey(w.pod))
			}
			if w.id != "" {
				g.union(idKey(id), idKey(w.id)) // a sandbox's group may be named after something else
			}
			if w.key() == "" && w.path != "/" {
				g.names[w.path] = idKey(id)
			}
			if end := endOf(p); end != "" {
				ends[end] = append(ends[end], idKey(id))
			}
		}
		for pid, role := range s.pids {
			k := g.r.known[pid]
			if k == nil || k.Kernel || role.start != 0 && role.start != k.Start {
				continue
			}
			g.byPID[pid] = idKey(id)
			if role.component == Sentry && s.Sandbox != "" {
				g.byPID[pid] = idKey(s.Sandbox)
			}
			g.role[pid] = role
		}
	}
	g.nameByEnd(all, ends)
}

// endOf returns the suffix of a group's path, if state has only that; empty if state has the whole path. A relative
// path is below the runtime's own group. systemd's notation SLICE:PREFIX:NAME means PREFIX-NAME.scope below the slice,
// or NAME if that is itself a slice (libcontainer/cgroups/systemd in runc).
func endOf(p string) string {
	if parts := strings.Split(p, ":"); len(parts) == 3 && !strings.Contains(p, "/") {
		switch prefix, name := parts[1], parts[2]; {
		case name == "":
			return ""
		case strings.HasSuffix(name, ".slice"):
			return "/" + name
		case prefix == "":
			return "/" + name + ".scope"
		default:
			return "/" + prefix + "-" + name + ".scope"
		}
	}
	if p == "" || strings.HasPrefix(p, "/") {
		return ""
	}
	return path.Clean("/" + p)
}

// nameByEnd uses state that contains only the suffix of a group's path. It gives a group without any other name the
// name from that state, if the suffix occurs in only one state and in the path of only one group.
func (g *gathering) nameByEnd(all []*known, ends map[string][]string) {
	if len(ends) == 0 {
		return
	}
	found := map[string]map[string]bool{} // by suffix: paths
	for _, k := range all {
		for _, charged := range []string{k.charged.Memory, k.charged.CPU} {
			if g.r.where(charged).key() != "" || strings.Count(charged, "/") > maxElements {
				continue
			}
			for p := charged; len(p) > 1; p = path.Dir(p) {
				for at := strings.LastIndexByte(p, '/'); at >= 0; at = strings.LastIndexByte(p[:at], '/') {
					if end := p[at:]; len(ends[end]) == 1 {
						if found[end] == nil {
							found[end] = map[string]bool{}
						}
						found[end][p] = true
					}
				}
			}
		}
	}
	for end, paths := range found {
		for p := range paths {
			if _, named := g.names[p]; !named && len(paths) == 1 && g.r.where(p).key() == "" {
				g.names[p] = ends[end][0]
			}
		}
	}
}

// identity returns the identity of a group, which state gives as a directory, as an identity or in systemd's notation.
func (g *gathering) identity(p string) string {
	for i := range g.r.layout.Hierarchies {
		h := &g.r.layout.Hierarchies[i]
		mount := strings.TrimPrefix(h.Mount, strings.TrimSuffix(g.r.root, "/"))
		if rest, ok := strings.CutPrefix(p, mount); ok && (rest == "" || rest[0] == '/') {
			return h.Identity(rest)
		}
	}
	if !strings.HasPrefix(p, "/") {
		return "/" + p
	}
	return path.Clean(p)
}

// locations returns the distinct groups of a process and its threads.
func (g *gathering) locations(k *known) []*where {
	all := []*where{g.r.where(k.charged.Memory)}
	all = lists.Include(all, g.r.where(k.charged.CPU))
	for i := range k.threads {
		all = lists.Include(all, g.r.where(k.threads[i].charged.CPU))
	}
	return all
}

// located returns the name that a process gets from its groups, and the group that decided it. If there is no name, it
// returns the group that the memory of the process is charged to.
func (g *gathering) located(k *known) (name string, w *where) {
	for _, p := range []string{k.charged.Memory, k.charged.CPU} {
		w := g.r.where(p)
		if name := w.key(); name != "" {
			return name, w
		}
		for p := p; len(p) > 1; p = path.Dir(p) {
			if name, ok := g.names[p]; ok {
				return name, w
			}
		}
	}
	return "", g.r.where(k.charged.Memory)
}

// assign determines what a process belongs to, as far as the process alone shows it.
func (g *gathering) assign(k *known) {
	name, w := g.located(k)
	if name != "" {
		g.of[k] = name
		g.signs[k] = append(g.signs[k], SignCgroup)
	}
	if id := k.claim.id; id != "" {
		claimed := idKey(id)
		switch {
		case name == "":
			g.of[k] = claimed
			g.signs[k] = append(g.signs[k], SignCommand)
		case g.find(name) == g.find(claimed):
			g.signs[k] = append(g.signs[k], SignCommand)
		// A group with this place is created only by sandbox runtimes, and only they start processes in it.
		case w.place == PlaceSandbox, w.id == "" && g.podOf(claimed) == "":
			g.union(name, claimed)
			g.signs[k] = append(g.signs[k], SignCommand)
		case g.encloses(w, id):
			g.of[k], g.signs[k] = claimed, []Sign{SignCommand}
		default:
			g.late = append(g.late, k)
		}
	}
	if of, ok := g.byPID[k.PID]; ok {
		// Without a start time, the PID may have been reused.
		if role := g.role[k.PID]; g.of[k] == "" && (role.start != 0 || role.component == k.claim.component()) {
			g.of[k] = of
		}
		if g.of[k] != "" && g.find(g.of[k]) == g.find(of) {
			g.signs[k] = append(g.signs[k], SignState)
		}
	}
}

// encloses reports whether the container with the id is inside the one whose group is w: a node of a cluster may be a
// container, and then has the shims of its pods in its own group.
func (g *gathering) encloses(w *where, id string) bool {
	return w.idPath != "" && slices.ContainsFunc(g.nested[id], func(p string) bool {
		return strings.HasPrefix(p, w.idPath+"/")
	})
}

// podOf returns the pod that a name has been united with; empty if there is none.
func (g *gathering) podOf(name string) string {
	root := g.find(name)
	for uid := range g.pods {
		if g.find(podKey(uid)) == root {
			return uid
		}
	}
	return ""
}

// settle handles a process in the group of one container whose command line names another. It belongs to the sandbox
// of its group. Its command line counts only if that sandbox has processes of the same runtime, as for a gofer that
// serves the second container of a pod.
func (g *gathering) settle(k *known) {
	for o := range g.of {
		if o != k && !g.mute[o] && o.claim.rule != nil && o.claim.runtime == k.claim.runtime && k.claim.runtime != "" &&
			slices.Contains(g.signs[o], SignCommand) && g.find(g.of[o]) == g.find(g.of[k]) {
			g.signs[k] = append(g.signs[k], SignCommand)
			return
		}
	}
	g.mute[k] = true
}

// inherit gives each process without a name the name of the process that it works for or descends from.
func (g *gathering) inherit(all []*known) {
	for _, k := range all {
		rule := k.claim.rule
		if rule != nil && rule.Kernel && g.of[k] == "" {
			if owner := g.r.known[k.claim.owner]; owner != nil && g.of[owner] != "" {
				g.of[k] = g.of[owner]
				g.signs[k] = append(g.signs[k], SignName)
			}
			continue
		}
		if g.of[k] == "" {
			if of := g.ancestor(k); of != nil {
				g.of[k] = g.of[of]
				g.signs[k] = append(g.signs[k], SignParent)
			}
		} else if parent := g.r.known[k.PPID]; parent != nil && g.of[parent] != "" &&
			g.find(g.of[k]) == g.find(g.of[parent]) {
			g.signs[k] = append(g.signs[k], SignParent)
		}
	}
}

// ancestor returns the nearest ancestor that is in a sandbox to which its children belong too; nil if there is none. It
// looks past processes that have no name, or only an inherited one, because the stubs of a sentry start further stubs.
func (g *gathering) ancestor(k *known) *known {
	for p, n := g.r.known[k.PPID], 0; p != nil && n < maxElements; p, n = g.r.known[p.PPID], n+1 {
		switch {
		case g.serves(p) && g.of[p] != "":
			return p
		case g.of[p] != "" && !slices.Equal(g.signs[p], []Sign{SignParent}):
			return nil
		}
	}
	return nil
}

// serves reports whether children of a process belong to its sandbox. Those of a sentry or VMM do, and a shim starts
// only processes of its sandbox.
func (g *gathering) serves(k *known) bool {
	return k.claim.rule != nil && !g.mute[k] && k.claim.id != "" && !k.claim.rule.Shared
}

// descends returns the component that a process gets from its ancestors: the stubs of a sentry run the application.
func (g *gathering) descends(k *known) Component {
	for p, n := g.r.known[k.PPID], 0; p != nil && n < maxElements; p, n = g.r.known[p.PPID], n+1 {
		if g.of[p] == "" || g.find(g.of[p]) != g.find(g.of[k]) {
			return ""
		}
		if r := p.claim.rule; r != nil && r.Children != "" && !g.mute[p] {
			return r.Children
		}
	}
	return ""
}

// census returns the sandboxes, each with the processes that were united in it, and the processes that serve all
// sandboxes.
func (g *gathering) census(all []*known) *Census {
	c := &Census{}
	if h, ok := g.r.layout.Controller("memory"); ok {
		c.Memory = cgroup.ModeV1
		if h.V2 {
			c.Memory = cgroup.ModeV2
		}
	}
	members := map[string][]*known{}
	for _, k := range all {
		k.sandbox, k.process = nil, nil
		if name := g.of[k]; name != "" {
			members[g.find(name)] = append(members[g.find(name)], k)
		} else if r := k.claim.rule; r != nil && r.Shared {
			k.process = g.process(k)
			k.process.Component, k.process.Signs = r.Component, []Sign{SignCommand}
			c.Shared = append(c.Shared, k.process)
		}
	}
	owners := g.owners(all)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		a := &assembly{g: g, s: &Sandbox{}, members: members[name], root: name, owners: owners}
		a.assemble()
		c.Sandboxes = append(c.Sandboxes, a.s)
	}
	slices.SortFunc(c.Sandboxes, func(a, b *Sandbox) int { return cmp.Compare(a.ID, b.ID) })
	for _, s := range c.Sandboxes {
		g.r.table.arrange(s, c.Memory)
	}
	return c
}

// process returns a Process without what depends on its sandbox.
func (g *gathering) process(k *known) *Process {
	return &Process{PID: k.PID, PPID: k.PPID, Start: k.Start, Comm: k.Comm, Program: k.claim.program, Kernel: k.Kernel,
		CPU: Location{Path: k.charged.CPU}, Memory: Location{Path: k.charged.Memory}}
}

// shared is the owner of a group that contains processes of several sandboxes, or of none.
const shared = "\x00"

// owners returns, by group, the name of the sandbox to which all processes in the group and its descendants belong, or
// shared.
func (g *gathering) owners(all []*known) map[string]string {
	owners := map[string]string{}
	add := func(p, owner string) {
		for ; p != "" && p != "."; p = path.Dir(p) {
			if was, ok := owners[p]; ok && was != owner {
				owners[p] = shared
			} else {
				owners[p] = owner
			}
			if p == "/" {
				return
			}
		}
	}
	for _, k := range all {
		owner := shared
		if name := g.of[k]; name != "" {
			owner = g.find(name)
		}
		add(k.charged.CPU, owner)
		add(k.charged.Memory, owner)
		for i := range k.threads {
			add(k.threads[i].charged.CPU, owner)
		}
	}
	return owners
}

// assembly builds one sandbox.
type assembly struct {
	g       *gathering
	s       *Sandbox
	members []*known
	root    string
	owners  map[string]string
}

func (a *assembly) assemble() {
	a.describe()
	for _, k := range a.members {
		a.add(k)
	}
	a.groups()
	a.empty()
}

// describe determines the properties of the sandbox as a whole.
func (a *assembly) describe() {
	s := a.s
	ids, claimed, containers, literal := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	engineOf, driverOf := "", ""
	var runtimes [2]string // the runtime according to command lines, and according to groups
	for _, k := range a.members {
		for _, w := range a.g.locations(k) {
			if w.key() == "" || a.g.find(w.key()) != a.root {
				continue
			}
			take(&s.Pod.UID, w.pod)
			take(&runtimes[1], w.runtime)
			take(&s.Flavour, w.flavour)
			take(&engineOf, w.engine)
			if w.place == PlaceContainer || w.place == PlaceSandbox || w.place == PlacePod || w.place == PlaceLiteral {
				take(&driverOf, w.driver)
			}
			if w.id != "" {
				ids[w.id] = true
				switch w.place {
				case PlaceContainer:
					containers[w.id] = true
				case PlaceLiteral:
					literal[w.id] = true
				}
			}
		}
		c := &k.claim
		if c.rule == nil || a.g.mute[k] || c.id == "" {
			continue
		}
		ids[c.id] = true
		if c.container {
			containers[c.id] = true
		} else if c.rule.Component != Monitor {
			claimed[c.id] = true
		}
		if c.rule.Component == Shim || runtimes[0] == "" {
			runtimes[0] = cmp.Or(c.runtime, runtimes[0])
		}
	}
	for p, name := range a.g.names {
		if a.g.find(name) == a.root && holds(a.members, p) {
			id := strings.TrimPrefix(name, idKey(""))
			ids[id], containers[id] = true, true
		}
	}
	st := &state{pids: map[int]role{}}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if one := a.g.r.state(id); one != nil {
			st.merge(one)
		}
	}
	take(&s.Pod.UID, st.Pod.UID)
	s.Pod.Name, s.Pod.Namespace = st.Pod.Name, st.Pod.Namespace
	take(&s.Flavour, st.flavour)
	for _, p := range st.groups {
		take(&s.Pod.UID, a.g.r.where(a.g.identity(p)).pod)
	}
	if st.overhead != nil {
		s.Declared = &Overhead{MemoryBytes: *st.overhead, Source: "annotation " + st.overheadKey}
	}
	if s.Pod == (Pod{}) {
		s.Name = st.Container // otherwise it is the name of only one of its containers
	}
	s.Runtime = cmp.Or(runtimes[0], runtimes[1], st.runtime)
	s.Engine, s.Driver = cmp.Or(engineOf, st.engine), driverOf
	runtime := a.g.r.table.runtime(s.Runtime)
	if s.Runtime == "" && slices.ContainsFunc(a.members, func(k *known) bool {
		return k.claim.component() == VMM && !a.g.mute[k]
	}) {
		runtime = &otherVM
	}
	s.VM, s.GuestMemory = runtime.VM, runtime.GuestMemory
	s.ID = a.name(st.Sandbox, ids, claimed)
	if s.VM {
		delete(containers, s.ID)
	} else {
		// With a virtual machine, a directory in systemd's notation belongs to the sandbox; here it is a container's.
		s.Flavour = ""
		maps.Copy(containers, literal)
	}
	s.Containers = slices.Sorted(maps.Keys(containers))
	if s.Declared == nil && st.memory != nil {
		s.Declared = a.fromLimit(*st.memory)
	}
}

// name chooses the id, in this order: the sandbox's name in state, the id in the command line of its shim, VMM or
// sentry, the pause container, the only id, the pod.
func (a *assembly) name(sandbox string, ids, claimed map[string]bool) string {
	if sandbox != "" {
		return sandbox
	}
	if len(claimed) > 0 {
		return slices.Min(slices.Collect(maps.Keys(claimed)))
	}
	for _, k := range a.members {
		_, w := a.g.located(k)
		if k.claim.component() == Init && w.id != "" && w.pod != "" {
			return w.id
		}
	}
	if len(ids) == 1 {
		return slices.Collect(maps.Keys(ids))[0]
	}
	if a.s.Pod.UID != "" {
		return a.s.Pod.UID
	}
	if len(ids) > 0 {
		return slices.Min(slices.Collect(maps.Keys(ids)))
	}
	_, id, _ := strings.Cut(a.root, ":")
	return id
}

// holds reports whether one of the processes is in a group or its descendants.
func holds(members []*known, group string) bool {
	return slices.ContainsFunc(members, func(k *known) bool {
		return cgroup.Within(k.charged.CPU, group) || cgroup.Within(k.charged.Memory, group)
	})
}

// fromLimit derives the declared overhead from the limit of the pod's group minus the sum over its containers: the
// kubelet adds podFixed to that sum (ResourceConfigForPod in pkg/kubelet/cm/helpers_linux.go).
func (a *assembly) fromLimit(containers uint64) *Overhead {
	h, ok := a.g.r.layout.Controller("memory")
	if !ok {
		return nil
	}
	for _, k := range a.members {
		for _, w := range a.g.locations(k) {
			if w.podPath == "" {
				continue
			}
			dir, ok := h.Dir(w.podPath)
			if !ok {
				return nil
			}
			limit := cgroup.MemoryLimit(dir)
			if !limit.OK || limit.N <= containers {
				return nil
			}
			return &Overhead{MemoryBytes: limit.N - containers,
				Source: "limit of the pod's group less the sum of its containers"}
		}
	}
	return nil
}

// add adds a process to the sandbox.
func (a *assembly) add(k *known) {
	p := a.g.process(k)
	p.Sandbox, p.Signs = a.s.ID, a.g.signs[k]
	p.CPU, p.Memory = a.location(k.charged.CPU), a.location(k.charged.Memory)
	if _, w := a.g.located(k); (w.place == PlaceContainer || w.place == PlaceLiteral) &&
		slices.Contains(a.s.Containers, w.id) {
		p.Container = w.id
	}
	if k.claim.container && !a.g.mute[k] {
		p.Container = k.claim.id
	}
	if name, w := a.g.located(k); w.key() == "" && name != "" {
		p.Container = strings.TrimPrefix(name, idKey(""))
	}
	p.Component = a.component(k, p)
	for i := range k.threads {
		t := &k.threads[i]
		thread := Thread{TID: t.tid, Comm: t.comm, Component: p.Component, CPU: a.location(t.charged.CPU), Memory: p.Memory}
		if t.rule != nil {
			thread.Component = t.rule.Component
			if t.rule.Process != "" {
				p.Component = t.rule.Process
			}
		}
		p.Threads = append(p.Threads, thread)
	}
	slices.SortFunc(p.Threads, func(x, y Thread) int { return cmp.Compare(x.TID, y.TID) })
	for i := range p.Threads { // in case a thread determined what the process is
		if p.Threads[i].Component == Shim && p.Component == VMM {
			p.Threads[i].Component = VMM
		}
	}
	p.Threads = slices.DeleteFunc(p.Threads, func(t Thread) bool { return t.Component == p.Component && t.CPU == p.CPU })
	k.sandbox, k.process = a.s, p
	a.s.Processes = append(a.s.Processes, p)
}

// component returns what a process does.
func (a *assembly) component(k *known, p *Process) Component {
	if c := a.g.descends(k); c != "" {
		return c
	}
	if r := k.claim.rule; r != nil && !a.g.mute[k] && !r.Shared {
		if !r.Inside || p.Container != "" || p.Memory.Inside {
			return r.Component
		}
	}
	if c := a.g.role[k.PID].component; c != "" && c != Workload {
		return c
	}
	ofState := slices.Contains(a.g.signs[k], SignState)
	switch {
	case a.s.VM, p.Memory.Place == PlacePod && p.CPU.Place == PlacePod:
		return Other
	case p.Container != "", p.Memory.Inside, p.CPU.Inside, ofState:
		return Workload
	}
	return Other
}

// location describes a group from the point of view of the sandbox.
func (a *assembly) location(group string) Location {
	w := a.g.r.where(group)
	l := Location{Path: group, Place: w.place}
	for p := group; w.key() == "" && len(p) > 1; p = path.Dir(p) {
		if name, ok := a.g.names[p]; ok && a.g.find(name) == a.root {
			return Location{Path: group, Place: PlaceContainer, Inside: a.s.Pod.UID == ""}
		}
	}
	switch {
	case w.place == PlaceLiteral && a.s.VM || w.place == PlaceOverhead:
	case w.pod != "":
		l.Inside = w.pod == a.s.Pod.UID
	case w.id != "" && a.g.find(idKey(w.id)) != a.root:
		l.Place = PlaceOther
	case w.id != "":
		l.Inside = a.s.Pod.UID == "" && w.place != PlaceHelper
	case w.place == PlaceOther || w.place == PlaceService:
		// A group with an unknown name belongs to the sandbox if nothing else is in it. The group of a service never does,
		// because the machine restarts a service as a whole.
		if w.place == PlaceOther && a.owners[group] == a.root {
			l.Place, l.Inside = PlaceOwn, a.s.Pod.UID == ""
		}
	}
	return l
}

// groups lists the groups that the sandbox is charged to. Those that belong to it alone and are not below another such
// group will have counters.
func (a *assembly) groups() {
	byPath := map[string]*Group{}
	add := func(l Location) *Group {
		if l.Path == "" {
			return nil
		}
		g := byPath[l.Path]
		if g == nil {
			g = &Group{Location: l}
			byPath[l.Path] = g
		}
		return g
	}
	for _, p := range a.s.Processes {
		cpu, memory := add(p.CPU), add(p.Memory)
		if memory != nil {
			memory.Processes++
		}
		if cpu != nil && cpu != memory {
			cpu.Processes++
		}
		for _, l := range []Location{p.CPU, p.Memory} {
			if w := a.g.r.where(l.Path); w.podPath != "" && l.Inside {
				add(a.location(w.podPath))
			}
		}
		for i := range p.Threads {
			add(p.Threads[i].CPU)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(byPath)) { // parents come first
		g := byPath[p]
		g.alone = a.alone(g)
		for above := path.Dir(p); len(above) > 1; above = path.Dir(above) {
			if o := byPath[above]; o != nil && o.alone {
				g.Within = above // the topmost is found last
			}
		}
		a.s.Groups = append(a.s.Groups, g)
	}
}

// alone reports whether a group belongs to this sandbox only.
func (a *assembly) alone(g *Group) bool {
	switch g.Place {
	case PlaceRoot, PlaceService, PlaceOther, PlaceHelper:
		return false
	}
	owner, ok := a.owners[g.Path]
	return g.Place == PlacePod || !ok || owner == a.root
}

// empty finds the containers' groups below the pod in which there are no processes: gVisor creates them for cAdvisor.
func (a *assembly) empty() {
	if a.s.Pod.UID == "" || !slices.ContainsFunc(a.s.Processes, func(p *Process) bool { return p.Component == Sentry }) {
		return
	}
	h, ok := a.g.r.layout.Controller("memory")
	if !ok {
		return
	}
	for _, g := range a.s.Groups {
		if g.Place != PlacePod {
			continue
		}
		dir, ok := h.Dir(g.Path)
		if !ok {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			below := filepath.Join(g.Path, e.Name())
			if _, holds := a.owners[below]; e.IsDir() && !holds && a.g.r.where(below).place == PlaceContainer {
				a.s.Empty = append(a.s.Empty, below)
			}
		}
	}
}

// watch starts reading the counters of groups that belong to one sandbox alone.
func (r *Reader) watch() {
	wanted := map[string]bool{}
	r.measured = r.measured[:0]
	for _, s := range r.census.Sandboxes {
		for _, g := range s.Groups {
			if !g.alone || g.Within != "" {
				continue
			}
			if g.Reading = r.groups.Add(g.Path); g.Reading != nil {
				wanted[g.Path] = true
				r.measured = append(r.measured, g)
			}
		}
	}
	for _, g := range slices.Clone(r.groups.Groups()) {
		if g.Vanished || !wanted[g.Path] {
			r.groups.Remove(g)
		}
	}
}
