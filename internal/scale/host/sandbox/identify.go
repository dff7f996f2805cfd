package sandbox

import (
	"cmp"
	"path"
	"strconv"
	"strings"

	"tare/internal/lib/lists"
)

// Bounds of what others write.
const (
	maxPath     = 4096     // bytes of the path of a group
	maxElements = 64       // of such a path
	maxCommand  = 32 << 10 // bytes of a command line
	maxArgs     = 1024
	maxState    = 1 << 20 // bytes of a file of a runtime's state
)

// where is what the path of a group says by itself.
type where struct {
	path    string
	podPath string // path of the pod's group; empty where it is in none
	idPath  string // path of the group that has the id
	pod     string // uid, with dashes
	id      string // of a container or sandbox
	place   Place

	engine, runtime, flavour, driver string
}

// key is what a location says of whose it is: the most precise name that it has; empty where it says nothing.
func (w *where) key() string {
	switch {
	case w.id != "":
		return idKey(w.id)
	case w.pod != "":
		return podKey(w.pod)
	}
	return ""
}

func idKey(id string) string   { return "id:" + id }
func podKey(uid string) string { return "pod:" + uid }

// podUID writes a pod's uid in one form: systemd's names have underscores in place of dashes.
func podUID(uid string) string { return strings.ReplaceAll(uid, "_", "-") }

// locate reads the path of a group.
func (t *table) locate(group string) *where {
	w := &where{path: group, place: PlaceOther}
	if group == "/" || group == "" {
		w.place = PlaceRoot
		return w
	}
	if len(group) > maxPath {
		return w
	}
	above, at := "", 0
	for n := 0; n < maxElements && at < len(group); n++ {
		rest := group[at+1:]
		element, _, _ := strings.Cut(rest, "/")
		at += 1 + len(element)
		if r := t.pathRule(element, above); r != nil {
			w.apply(r, element, group[:at])
		}
		above = element
	}
	return w
}

// ContainerOf is the id of the container or sandbox whose group has a name, as a census finds it; empty where the name
// is not that of one, or of a helper beside one.
func ContainerOf(name string) string {
	switch w := builtin().locate("/" + name); w.place {
	case PlaceContainer, PlaceSandbox, PlaceLiteral:
		return w.id
	}
	return ""
}

func (t *table) pathRule(element, above string) *pathRule {
	for i := range t.Paths {
		r := &t.Paths[i]
		if r.Match.matches(element) && r.Under.matches(above) && (r.Not == nil || !r.Not.matches(element)) {
			return r
		}
	}
	return nil
}

// apply takes over what a rule says of an element. What a container keeps below itself stays the container's, but for
// another container: a node of a cluster may be one.
func (w *where) apply(r *pathRule, element, upTo string) {
	pod, id := podUID(r.Match.capture(element, "pod")), r.Match.capture(element, "id")
	if id != "" && !validID(id) {
		return
	}
	if pod == "" && id == "" {
		if w.id == "" && w.pod == "" {
			w.place = r.Place
		}
		return
	}
	if pod != "" {
		w.pod, w.podPath = pod, upTo
		if r.Place == PlaceLiteral {
			w.podPath = ""
		}
		w.id, w.idPath, w.engine, w.runtime, w.flavour = "", "", "", "", ""
	}
	w.place = r.Place
	if id != "" {
		w.id, w.idPath = id, upTo
	}
	w.engine, w.runtime = cmp.Or(r.Engine, w.engine), cmp.Or(r.Runtime, w.runtime)
	w.flavour, w.driver = cmp.Or(r.Flavour, w.flavour), cmp.Or(r.Driver, w.driver)
}

// command is what a process was started as.
type command struct {
	comm, exe string
	args      []string
	kernel    bool
}

// claim is what a command line says of its process. The zero value says nothing.
type claim struct {
	rule      *processRule
	id        string // of a sandbox, or of a container of one
	container bool
	runtime   string
	owner     int // the process that a thread of the kernel works for
	program   string
}

// component is what the process says that it is.
func (c *claim) component() Component {
	if c.rule == nil {
		return ""
	}
	return c.rule.Component
}

// ComponentOf says what a process is of which it is known that it is of a sandbox, by its command line: other than for
// a census, it need not name that sandbox. It is empty where the table does not know it, as it does no application.
func ComponentOf(comm string, args []string) Component {
	c := builtin().match(command{comm: comm, args: args}, true)
	return c.component()
}

// identify reads a command line.
func (t *table) identify(c command) claim { return t.match(c, false) }

// match finds the first rule that a command line fits. Those that need an id fit without one where known is true: that
// it is of a sandbox.
func (t *table) match(c command, known bool) claim {
	names := make([]string, 0, 2)
	if len(c.args) > 0 {
		names = append(names, path.Base(c.args[0]))
	}
	if c.exe != "" {
		if exe := path.Base(strings.TrimSuffix(c.exe, " (deleted)")); len(names) == 0 || exe != names[0] {
			names = append(names, exe)
		}
	}
	if c.kernel {
		return t.identifyKernel(c.comm)
	}
	line := ""
	for _, name := range names {
		for i := range t.Processes {
			r := &t.Processes[i]
			if r.Kernel || r.Program == nil || !r.Program.matches(name) || !r.Comm.matches(c.comm) {
				continue
			}
			if r.Args != nil {
				if line == "" {
					line = strings.Join(c.args, " ")
				}
				if !r.Args.matches(line) {
					continue
				}
			}
			out := claim{rule: r, runtime: r.Runtime, program: name}
			nameSandbox(&out, c.args)
			if out.id == "" && r.Required && !known {
				continue
			}
			return out
		}
	}
	if len(names) > 0 {
		return claim{program: names[0]}
	}
	return claim{program: c.comm}
}

// identifyKernel reads the name of a thread of the kernel.
func (t *table) identifyKernel(comm string) claim {
	for i := range t.Processes {
		r := &t.Processes[i]
		if !r.Kernel || !r.Comm.matches(comm) {
			continue
		}
		if owner := number(r.Comm.capture(comm, "pid")); owner > 0 {
			return claim{rule: r, owner: owner, program: comm}
		}
	}
	return claim{program: comm}
}

// number reads a pid; 0 for what is none.
func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 23) // PID_MAX_LIMIT is 1<<22
	if err != nil {
		return 0
	}
	return int(n)
}

// nameSandbox finds the sandbox that a command line names.
func nameSandbox(c *claim, args []string) {
	for i := range c.rule.ID {
		src := &c.rule.ID[i]
		var values []string
		switch {
		case src.Flag != "":
			values = flagValues(args, src.Flag)
		case src.Last && len(args) > 1:
			values = args[len(args)-1:]
		case !src.Last && len(args) > 1:
			values = args[1:]
		}
		for _, v := range values {
			id := v
			if src.Match != nil {
				id = src.Match.capture(v, "id")
			}
			if !validID(id) {
				continue
			}
			c.id, c.container = id, src.Container
			return
		}
	}
}

// flagValues are the values of a flag, with one dash or two, in the argument itself or the next.
func flagValues(args []string, flag string) (values []string) {
	want := strings.TrimLeft(flag, "-")
	for i, a := range args {
		if i == 0 || !strings.HasPrefix(a, "-") {
			continue
		}
		name, value, inside := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case name != want:
		case inside:
			values = append(values, value)
		case i+1 < len(args):
			values = append(values, args[i+1])
		}
	}
	return values
}

// validID says whether a string can be the id of a container: it may become part of a path, and is shown to people.
func validID(id string) bool {
	if len(id) == 0 || len(id) > 128 || id == "." || id == ".." {
		return false
	}
	for i := 0; i < len(id); i++ {
		c := id[i]
		letter := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || strings.IndexByte("_.+-", c) < 0) {
			return false
		}
	}
	return true
}

// thread is what a thread of a process that has them does: its process's component where nothing is known.
func (t *table) thread(comm string) *threadRule {
	return lists.Find(t.Threads, func(r *threadRule) bool { return r.Comm.matches(comm) })
}
