package sandbox

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// runtime holds what is known about a runtime of containers or virtual machines. Each runtime has a file that registers
// it.
type runtime struct {
	Name string

	// VM: the application is inside a virtual machine, so it is not a process of the host.
	VM bool
	// Plain: applications are processes of the host in a group of their container, which the runtime's state names if no
	// engine does.
	Plain bool
	// GuestMemory are the components whose shared memory is the application's: that of a guest (memory-backend-memfd or
	// -file with share=on; Cloud Hypervisor's memfd), which virtiofsd maps as well, or what a sentry keeps for the
	// application.
	GuestMemory []Component

	Paths     []pathRule
	Processes []processRule
	Otherwise []processRule // tried after the Processes of all runtimes, because several may start the same program
	Threads   []threadRule
	States    []stateFiles
	Rows      []row
	Findings  []findingRule

	Launch *Launch // nil: Tare itself runs no containers in it
}

// engine holds what is known about an engine, which starts runtimes. Each engine has a file that registers it.
type engine struct {
	Name   string
	Paths  []pathRule
	States []stateFiles
	Rows   []row
}

// The registries, ordered by name.
var (
	runtimes []*runtime
	engines  []*engine
)

// registerRuntime adds a runtime. It must be called only from init functions.
func registerRuntime(r *runtime) {
	runtimes = append(runtimes, r)
	slices.SortFunc(runtimes, func(a, b *runtime) int { return cmp.Compare(a.Name, b.Name) })
}

// registerEngine adds an engine. It must be called only from init functions.
func registerEngine(e *engine) {
	engines = append(engines, e)
	slices.SortFunc(engines, func(a, b *engine) int { return cmp.Compare(a.Name, b.Name) })
}

// table holds the rules of all runtimes and engines. The first rule that matches applies.
type table struct {
	Paths     []pathRule
	Processes []processRule
	Threads   []threadRule
	Runtimes  []*runtime
	States    []stateRule
	Homes     []stateRule // below the home of a user who runs an engine
	Rows      []row
	Findings  []findingRule
}

// builtin returns the table of everything registered.
var builtin = sync.OnceValue(newTable)

// newTable combines everything registered with the rules that belong to no runtime or engine.
func newTable() *table {
	t := &table{Runtimes: runtimes, Paths: slices.Clone(podPaths), Findings: slices.Clone(commonFindings)}
	for _, f := range bundles {
		t.addStates(f, stateRule{bundle: true})
	}
	for _, e := range engines {
		t.Paths = append(t.Paths, each(e.Paths, func(p *pathRule) { p.Engine = e.Name })...)
		for _, f := range e.States {
			t.addStates(f, stateRule{Engine: e.Name, bundle: true})
		}
	}
	var last []processRule
	for _, r := range runtimes {
		ofRuntime := func(p *processRule) { p.Runtime = r.Name }
		t.Paths = append(t.Paths, each(r.Paths, func(p *pathRule) { p.Runtime = r.Name })...)
		t.Processes = append(t.Processes, each(r.Processes, ofRuntime)...)
		last = append(last, each(r.Otherwise, ofRuntime)...)
		t.Threads = append(t.Threads, r.Threads...)
		for _, f := range r.States {
			t.addStates(f, stateRule{Runtime: r.Name})
		}
		t.Rows = append(t.Rows, each(r.Rows, func(w *row) { w.Runtime = r.Name })...)
		t.Findings = append(t.Findings, r.Findings...)
	}
	for _, e := range engines {
		t.Rows = append(t.Rows, each(e.Rows, func(w *row) { w.Engine = e.Name })...)
	}
	t.Paths = append(t.Paths, otherPaths...)
	t.Processes = slices.Concat(t.Processes, last, otherProcesses)
	t.Threads = append(t.Threads, vmThreads...)
	t.Rows = append(t.Rows, otherRows...)
	return t
}

// each returns copies of rules, after calling set on each to record its owner.
func each[T any](rules []T, set func(*T)) []T {
	rules = slices.Clone(rules)
	for i := range rules {
		set(&rules[i])
	}
	return rules
}

// addStates adds a copy of rule for each place of the files.
func (t *table) addStates(f stateFiles, rule stateRule) {
	rule.Flavour, rule.parse = f.Flavour, f.Parse
	for _, dir := range f.Dirs {
		rule.Path, rule.fixed = dir+"/"+f.File, fixedPart(dir)
		t.States = append(t.States, rule)
	}
	for _, dir := range f.Home {
		rule.Path, rule.fixed = dir+"/"+f.File, fixedPart(dir)
		t.Homes = append(t.Homes, rule)
	}
}

// below adds what runtimes keep in a directory passed to them as --root, for those that have such an option.
func (t *table) below(dir string) {
	for _, r := range t.Runtimes {
		for _, f := range r.States {
			if f.Anywhere {
				f.Dirs = []string{escapeGlob(dir)}
				t.addStates(f, stateRule{Runtime: r.Name})
			}
		}
	}
}

// expression is a regular expression that must match an entire string. nil matches everything.
type expression func() *regexp.Regexp

// expr returns an expression that is compiled on first use. {uid}, {hex} and {id} are kinds of ids. Tests compile all
// expressions, so none can be invalid at run time.
func expr(text string) expression {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^(?:" + idKinds.Replace(text) + ")$") })
}

// idKinds replaces {name} in expressions.
var idKinds = strings.NewReplacer(
	"{uid}", "[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32}",
	"{hex}", "[0-9a-f]{64}",
	"{id}", "[A-Za-z0-9][A-Za-z0-9_.+-]*", // of at most 128 bytes: validID
)

func (e expression) matches(s string) bool { return e == nil || e().MatchString(s) }

// capture returns what the capture group with the given name matched; empty if the expression does not match or has no
// such group.
func (e expression) capture(s, name string) string {
	if e == nil {
		return ""
	}
	match, i := e().FindStringSubmatch(s), e().SubexpIndex(name)
	if match == nil || i < 0 {
		return ""
	}
	return match[i]
}

// pathRule matches one element of the path of a control group. Elements are tried from the root down. The deepest match
// determines what the group is, and the deepest match with a pod determines its pod.
type pathRule struct {
	Match   expression // with capture groups pod and id
	Under   expression // the element above it
	Not     expression
	Place   Place
	Engine  string
	Runtime string
	Flavour string
	Driver  string
}

// processRule matches a process, by the base name of its command (argv[0], else the executable's), or a kernel thread,
// by its name.
type processRule struct {
	Program   expression // base name of its command
	Comm      expression
	Args      expression // the command line, joined with spaces
	Component Component
	Runtime   string
	ID        []idSource
	Required  bool      // it does not match without an id
	Threads   bool      // its threads must be checked
	Shared    bool      // it serves all sandboxes
	Kernel    bool      // a kernel thread; the capture group pid in Comm is the process that it works for
	Inside    bool      // it matches only in the group of a container
	Unsettled bool      // it will execute another program, so it must be checked again
	Children  Component // the component of all its descendants in the same sandbox
	StateFlag string    // the flag for the directory of the runtime's state
}

// idSource is a place in a command line that names a sandbox.
type idSource struct {
	Flag      string     // the value of this flag ("-id X", "--id=X"); if empty, any argument
	Last      bool       // the last argument
	Match     expression // the value must match it, and its capture group id is the id; nil: the value is the id
	Container bool       // it names a container of the sandbox
}

// threadRule matches a thread, by its name, of a process whose rule has Threads.
type threadRule struct {
	Comm      expression
	Component Component
	Process   Component // the component of a process that has such a thread; empty: the thread does not decide it
}

// stateFiles are files that a runtime or engine keeps for each container or sandbox; see state.go.
type stateFiles struct {
	Dirs []string // may have wildcards
	Home []string // below the home of a user who runs the engine without root; only for engines
	// File is below each directory. It contains {id}, and {sandbox} for the name of a sandbox; without {id} it is one
	// file for all.
	File     string
	Anywhere bool // the runtime has a flag, such as runc's --root, that names another directory to use instead of Dirs
	Flavour  string
	Parse    parseState // nil: only the file's existence matters
}

// parseState parses a file into s.
type parseState func(s *state, file string, text []byte) error

// stateRule is one path of stateFiles.
type stateRule struct {
	Path    string
	Runtime string
	Flavour string
	Engine  string

	fixed  string // the directory without which no such file can exist (fixedPart)
	parse  parseState
	bundle bool // it is the configuration of a container, which names no process
}

// charged lists, by component, the places where all parts of the component must be charged.
type charged map[Component][]Place

// row is one way in which a sandbox can be arranged. The first row that matches counts. An empty field matches every
// sandbox. Each component in CPU and Memory must exist, and all of its CPU time or memory must be charged to the places
// listed.
type row struct {
	Name           string
	Title          string
	Runtime        string
	Plain          bool // only for runtimes that are Plain
	Flavour        string
	Engine         string
	EngineNot      []string
	Driver         string
	OverheadDriver string
	Hierarchy      string      // the one that counts memory: v1 or v2
	Pod            *bool       // whether the sandbox belongs to a pod of Kubernetes
	Program        string      // of the VMM
	Has            []Component // it has processes or threads of all of these
	Absent         []Component // it has none of these
	CPU, Memory    charged
}

// findingRule makes a Finding about each of its components whose processes and threads are charged as the rule
// requires. docs/weigh-sandboxes.md lists the {names} in Says.
type findingRule struct {
	Code         string
	Row          string // name of the sandbox's row; empty: any
	Components   []Component
	Hierarchy    string  // as in row
	Pod          *bool   // as in row
	CPU          []Place // places of its CPU time; nil: any
	Memory       []Place // places of its memory; nil: any
	LeaderMemory []Place // places of the memory of the process that a thread belongs to
	Any          []Place // places of its CPU time or its memory
	Left         Place   // a group of that kind holds more memory than its processes account for
	EmptyGroups  bool    // its pod has groups of containers without processes
	Alone        bool    // no process that runs the application is known
	Says         string
}

// runtime returns a runtime by name; the zero value if it is unknown.
func (t *table) runtime(name string) *runtime {
	i := slices.IndexFunc(t.Runtimes, func(r *runtime) bool { return r.Name == name })
	if i < 0 {
		return &runtime{}
	}
	return t.Runtimes[i]
}
