package sandbox

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// runtime is what is known of a runtime of containers or virtual machines. Each is a file that registers it.
type runtime struct {
	Name string

	// VM says that the application is inside a virtual machine, so that no process of the host is it.
	VM bool
	// Plain says that applications are processes of the host in a group of their container, which the runtime's state
	// names where no engine does.
	Plain bool
	// GuestMemory are the components whose shared memory is the application's: that of a guest (memory-backend-memfd or
	// -file with share=on; Cloud Hypervisor's memfd), which virtiofsd maps as well, or what a sentry keeps for it.
	GuestMemory []Component

	Paths     []pathRule
	Processes []processRule
	Otherwise []processRule // tried after the rules of all runtimes, because these may start the same program
	Threads   []threadRule
	States    []stateFiles
	Rows      []row
	Findings  []findingRule

	Launch *Launch // nil: Tare itself runs no containers in it
}

// engine is what is known of an engine, which starts runtimes. Each is a file that registers it.
type engine struct {
	Name   string
	Paths  []pathRule
	States []stateFiles
	Rows   []row
}

// The registries, in the order of names.
var (
	runtimes []*runtime
	engines  []*engine
)

// registerRuntime adds a runtime. It is called from init functions only.
func registerRuntime(r *runtime) {
	runtimes = append(runtimes, r)
	slices.SortFunc(runtimes, func(a, b *runtime) int { return cmp.Compare(a.Name, b.Name) })
}

// registerEngine adds an engine. It is called from init functions only.
func registerEngine(e *engine) {
	engines = append(engines, e)
	slices.SortFunc(engines, func(a, b *engine) int { return cmp.Compare(a.Name, b.Name) })
}

// table is what is known of all runtimes and engines. The first rule that fits counts.
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

// builtin is the table of all that is registered.
var builtin = sync.OnceValue(newTable)

// newTable puts together what is registered, and what belongs to no runtime and no engine.
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

// each gives copies of rules to which set has added whose they are.
func each[T any](rules []T, set func(*T)) []T {
	rules = slices.Clone(rules)
	for i := range rules {
		set(&rules[i])
	}
	return rules
}

// addStates adds the rules of some files, which have in common what rule says.
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

// below adds what runtimes keep in a directory that they were given as --root, as far as they can be given one.
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

// expression is a regular expression that must match the whole of a string. nil matches everything.
type expression func() *regexp.Regexp

// expr is an expression, which is compiled when it is first needed. {uid}, {hex} and {id} are kinds of ids. Tests
// compile them all, so that none can be wrong.
func expr(text string) expression {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^(?:" + idKinds.Replace(text) + ")$") })
}

// idKinds are what {name} stands for in expressions.
var idKinds = strings.NewReplacer(
	"{uid}", "[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32}",
	"{hex}", "[0-9a-f]{64}",
	"{id}", "[A-Za-z0-9][A-Za-z0-9_.+-]*", // of at most 128 bytes: validID
)

func (e expression) matches(s string) bool { return e == nil || e().MatchString(s) }

// capture is what a group of the given name matched; empty where the expression does not match or has none.
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

// pathRule is for one element of the path of a control group, from the root down. The deepest that matches says what
// the group is; the pod is that of the deepest pod.
type pathRule struct {
	Match   expression // with groups pod and id
	Under   expression // the element above it
	Not     expression
	Place   Place
	Engine  string
	Runtime string
	Flavour string
	Driver  string
}

// processRule is for a process, by the base name of its command (argv[0], else the executable's), and for a thread of
// the kernel by its name.
type processRule struct {
	Program   expression // base name of its command
	Comm      expression
	Args      expression // the command line, joined with spaces
	Component Component
	Runtime   string
	ID        []idSource
	Required  bool      // it is no match without an id
	Threads   bool      // look at its threads
	Shared    bool      // it serves all sandboxes
	Kernel    bool      // a thread of the kernel, that Comm's pid says who it works for
	Inside    bool      // only in the group of a container
	Unsettled bool      // it will become something else: look again
	Children  Component // of all that descends from it in the same sandbox
	StateFlag string    // says where the runtime keeps its state
}

// idSource is where a command line names a sandbox.
type idSource struct {
	Flag      string     // the value of this flag ("-id X", "--id=X"); else any argument
	Last      bool       // the last argument
	Match     expression // that the value must match, with a group id; else the value is the id
	Container bool       // it names a container of the sandbox
}

// threadRule is for a thread of a process whose rule has Threads, by its name.
type threadRule struct {
	Comm      expression
	Component Component
	Process   Component // what its process then is
}

// stateFiles are files that a runtime or an engine keeps for each container or sandbox; see state.go.
type stateFiles struct {
	Dirs     []string // may have wildcards
	Home     []string // below the home of a user who runs the engine without root; an engine's only
	File     string   // below each, with {id}, and {sandbox} for the name of a sandbox; without {id} it is of them all
	Anywhere bool     // a runtime may have been given another directory
	Flavour  string
	Parse    parseState // nil: that the file is there says something
}

// parseState reads a file.
type parseState func(s *state, file string, text []byte) error

// stateRule is one of these places.
type stateRule struct {
	Path    string
	Runtime string
	Flavour string
	Engine  string

	fixed  string // the directory that exists where its files can
	parse  parseState
	bundle bool // the configuration of a container, which names no process
	named  bool // by a command line, so that it may be anybody's
}

// charged are the places of which all of a component must be charged to one, by component.
type charged map[Component][]Place

// row is one way in which a sandbox can be arranged. The first that holds counts: each component of CPU and of Memory
// must be there, and all of its CPU time or memory charged to the places that are named.
type row struct {
	Name           string
	Title          string
	Runtime        string
	Plain          bool // of a runtime that is plain
	Flavour        string
	Engine         string
	EngineNot      []string
	Driver         string
	OverheadDriver string
	Hierarchy      string // that counts memory: v1 or v2
	Pod            *bool
	Program        string // of the VMM
	Has            []Component
	Absent         []Component
	CPU, Memory    charged
}

// findingRule is something that is worth saying of a sandbox, of each of some components, by where its processes and
// threads are charged. docs/weigh-sandboxes.md lists the {names} in the words.
type findingRule struct {
	Code         string
	Row          string
	Components   []Component
	Hierarchy    string
	Pod          *bool
	CPU          []Place
	Memory       []Place
	LeaderMemory []Place // of the process that a thread belongs to
	Any          []Place // its CPU time or its memory
	Left         Place   // a group of that kind holds more than its processes
	EmptyGroups  bool
	Alone        bool // nothing is known that runs the application
	Says         string
}

// runtime is what is known of a runtime; the zero value where nothing is.
func (t *table) runtime(name string) *runtime {
	i := slices.IndexFunc(t.Runtimes, func(r *runtime) bool { return r.Name == name })
	if i < 0 {
		return &runtime{}
	}
	return t.Runtimes[i]
}
