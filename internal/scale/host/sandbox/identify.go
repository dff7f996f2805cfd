package sandbox

import (
	"cmp"
	"path"
	"strconv"
	"strings"

	"tare/internal/lib/lists"
)

// Limits for input that others control.
const (
	maxPath     = 4096     // bytes of a group's path
	maxElements = 64       // elements of such a path
	maxCommand  = 32 << 10 // bytes of a command line
	maxArgs     = 1024
	maxState    = 1 << 20 // bytes of a state file of a runtime
)

// where holds what a group's path alone shows about it.
type where struct {
	path    string
	podPath string // path of the pod's group; empty if there is none
	idPath  string // path of the group with the id
	pod     string // uid, with dashes
	id      string // of a container or sandbox
	place   Place

	engine, runtime, flavour, driver string
}

// key returns the most precise name of the owner that a path shows; empty if it shows none.
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

// podUID normalizes the uid of a pod: systemd's names have underscores instead of dashes.
func podUID(uid string) string { return strings.ReplaceAll(uid, "_", "-") }

// locate interprets the path of a group.
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

// ContainerOf returns the id of the container or sandbox whose group has the given name, as a census would find it;
// empty for other names, and for helpers beside a container.
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

// apply updates w with the match of a rule. Groups below a container's belong to the container, unless they are
// another container's: a node of a cluster may be a container.
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

// command describes how a process was started.
type command struct {
	comm, exe string
	args      []string
	kernel    bool
}

// claim holds what a command line says about its process. The zero value says nothing.
type claim struct {
	rule      *processRule
	id        string // of a sandbox, or of a container of one
	container bool
	runtime   string
	owner     int // the process that a kernel thread works for
	program   string
}

// component returns the component that the process claims to be.
func (c *claim) component() Component {
	if c.rule == nil {
		return ""
	}
	return c.rule.Component
}

// ComponentOf determines, by its command line, the component of a process that is known to belong to a sandbox. Unlike
// in a census, the command line need not name the sandbox. The result is empty for processes that are not in the table,
// such as applications.
func ComponentOf(comm string, args []string) Component {
	c := builtin().match(command{comm: comm, args: args}, true)
	return c.component()
}

// identify interprets a command line.
func (t *table) identify(c command) claim { return t.match(c, false) }

// match finds the first rule that matches a command line. A rule that requires an id is skipped if the command line has
// none, unless known is true: the process is then known to belong to a sandbox.
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

// identifyKernel interprets the name of a kernel thread.
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

// number parses a PID; 0 if it is not one.
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

// flagValues returns the values of a flag, with one or two dashes, in the same argument or the next.
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

// validID reports whether a string can be the id of a container. It may become part of a path, and is shown to users.
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

// thread returns the rule for a thread by its name; nil if there is none, and the thread then has its process's
// component.
func (t *table) thread(comm string) *threadRule {
	return lists.Find(t.Threads, func(r *threadRule) bool { return r.Comm.matches(comm) })
}
