package sandbox

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:generate go run generate.go

// tableJSON is table.yaml in a form that is quick to read.
//
//go:embed table.json
var tableJSON []byte

// table is what is known of runtimes, as table.yaml has it.
type table struct {
	IDs         map[string]string `json:"ids"`
	Paths       []pathRule        `json:"paths"`
	Processes   []processRule     `json:"processes"`
	Threads     []threadRule      `json:"threads"`
	Runtimes    []runtimeRule     `json:"runtimes"`
	States      []stateRule       `json:"states"`
	Annotations annotationKeys    `json:"annotations"`
	Rows        []row             `json:"rows"`
	Findings    []findingRule     `json:"findings"`
}

// expression is a regular expression that must match the whole of a string. The zero value matches everything.
type expression struct {
	text string
	*regexp.Regexp
}

// UnmarshalJSON keeps the text; parseTable compiles it.
func (e *expression) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &e.text) }

func (e *expression) matches(s string) bool { return e.Regexp == nil || e.MatchString(s) }

// capture is what a group of the given name matched; empty where the expression does not match or has none.
func (e *expression) capture(s, name string) string {
	if e.Regexp == nil {
		return ""
	}
	return captured(e.Regexp, e.FindStringSubmatch(s), name)
}

func captured(re *regexp.Regexp, match []string, name string) string {
	if i := re.SubexpIndex(name); match != nil && i >= 0 {
		return match[i]
	}
	return ""
}

// pathRule is for one element of the path of a group.
type pathRule struct {
	Match   expression `json:"match"`
	Under   expression `json:"under"` // the element above it
	Not     expression `json:"not"`
	Place   Place      `json:"place"`
	Engine  string     `json:"engine"`
	Runtime string     `json:"runtime"`
	Flavour string     `json:"flavour"`
	Driver  string     `json:"driver"`
}

// processRule is for a process.
type processRule struct {
	Program   expression  `json:"program"` // base name of its command
	Comm      expression  `json:"comm"`
	Args      expression  `json:"args"` // the command line, joined with spaces
	Component Component   `json:"component"`
	Runtime   string      `json:"runtime"`
	ID        []idSource  `json:"id"`
	Required  bool        `json:"required"`  // it is no match without an id
	Threads   bool        `json:"threads"`   // look at its threads
	Shared    bool        `json:"shared"`    // it serves all sandboxes
	Kernel    bool        `json:"kernel"`    // a thread of the kernel, that Comm's pid says who it works for
	Inside    bool        `json:"inside"`    // only in the group of a container
	Unsettled bool        `json:"unsettled"` // it will become something else: look again
	Children  Component   `json:"children"`  // of all that descends from it in the same sandbox
	State     *stateInArg `json:"state"`
}

// idSource is where a command line names a sandbox.
type idSource struct {
	Flag      string     `json:"flag"`  // the value of this flag ("-id X", "--id=X"); else any argument
	Last      bool       `json:"last"`  // the last argument
	Match     expression `json:"match"` // that the value must match, with a group id; else the value is the id
	Runtime   string     `json:"runtime"`
	Container bool       `json:"container"` // it names a container of the sandbox
}

// stateInArg is a flag that says where a runtime keeps its state.
type stateInArg struct {
	Flag   string `json:"flag"`
	Format string `json:"format"`
}

type threadRule struct {
	Comm      expression `json:"comm"`
	Component Component  `json:"component"`
	Process   Component  `json:"process"` // what its process then is
}

type runtimeRule struct {
	Name        string      `json:"name"`
	VM          bool        `json:"vm"`
	GuestMemory []Component `json:"guest_memory"` // whose shared memory is the application's
}

// stateRule is where a runtime keeps its state; see state.go.
type stateRule struct {
	Path    string `json:"path"`
	Format  string `json:"format"`
	Runtime string `json:"runtime"`
	Flavour string `json:"flavour"`
	Engine  string `json:"engine"`

	named bool // by a command line, so that it may be anybody's
}

// annotationKeys are the keys of an OCI configuration, in the order in which they are looked for.
type annotationKeys struct {
	Sandbox       []string `json:"sandbox"`
	PodUID        []string `json:"pod_uid"`
	PodName       []string `json:"pod_name"`
	PodNamespace  []string `json:"pod_namespace"`
	ContainerName []string `json:"container_name"`
	Overhead      []string `json:"overhead"`
	SandboxMemory []string `json:"sandbox_memory"`
}

// places are those that all of a component must be charged to; nil is anywhere.
type places struct {
	CPU    []Place `json:"cpu"`
	Memory []Place `json:"memory"`
}

// row is one way in which a sandbox can be arranged.
type row struct {
	Name           string               `json:"name"`
	Title          string               `json:"title"`
	Runtime        string               `json:"runtime"`
	RuntimeAny     []string             `json:"runtime_any"`
	Flavour        string               `json:"flavour"`
	Engine         string               `json:"engine"`
	EngineNot      []string             `json:"engine_not"`
	Driver         string               `json:"driver"`
	OverheadDriver string               `json:"overhead_driver"`
	Hierarchy      string               `json:"hierarchy"` // that counts memory: v1 or v2
	Pod            *bool                `json:"pod"`
	Program        string               `json:"program"` // of the VMM
	Has            []Component          `json:"has"`
	Absent         []Component          `json:"absent"`
	Components     map[Component]places `json:"components"`
}

// findingRule is something that is worth saying of a sandbox.
type findingRule struct {
	Code         string    `json:"code"`
	Row          string    `json:"row"`
	Component    Component `json:"component"`
	Hierarchy    string    `json:"hierarchy"`
	Pod          *bool     `json:"pod"`
	CPU          []Place   `json:"cpu"`
	Memory       []Place   `json:"memory"`
	LeaderMemory []Place   `json:"leader_memory"` // of the process that a thread belongs to
	Any          []Place   `json:"any"`           // its CPU time or its memory
	Left         Place     `json:"left"`          // a group of that kind holds more than its processes
	EmptyGroups  bool      `json:"empty_groups"`
	Says         string    `json:"says"`
}

// builtin is the table that is compiled in. A test parses it, so that it cannot be wrong.
var builtin = sync.OnceValues(func() (*table, error) { return parseTable(tableJSON) })

// parseTable reads a table in JSON and compiles its expressions.
func parseTable(text []byte) (*table, error) {
	var t table
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return nil, fmt.Errorf("reading the table of sandboxes: %w", err)
	}
	compile := func(e *expression, groups ...string) error {
		if e.text == "" {
			return nil
		}
		text := e.text
		for name, pattern := range t.IDs {
			text = strings.ReplaceAll(text, "{"+name+"}", pattern)
		}
		re, err := regexp.Compile("^(?:" + text + ")$")
		if err != nil {
			return fmt.Errorf("%q in the table of sandboxes: %w", e.text, err)
		}
		for _, name := range re.SubexpNames() {
			if name != "" && !slices.Contains(groups, name) {
				return fmt.Errorf("%q in the table of sandboxes: no group %q is read here", e.text, name)
			}
		}
		e.Regexp = re
		return nil
	}
	var errs []error
	for i := range t.Paths {
		r := &t.Paths[i]
		errs = append(errs, compile(&r.Match, "pod", "id"), compile(&r.Under), compile(&r.Not))
	}
	for i := range t.Processes {
		r := &t.Processes[i]
		errs = append(errs, compile(&r.Program), compile(&r.Comm, "pid"), compile(&r.Args), t.known(r.Component))
		for j := range r.ID {
			errs = append(errs, compile(&r.ID[j].Match, "id"))
		}
	}
	for i := range t.Threads {
		errs = append(errs, compile(&t.Threads[i].Comm), t.known(t.Threads[i].Component))
	}
	for i := range t.Rows {
		for c := range t.Rows[i].Components {
			errs = append(errs, t.known(c))
		}
	}
	for i := range t.Findings {
		errs = append(errs, t.known(t.Findings[i].Component))
	}
	return &t, errors.Join(errs...)
}

func (t *table) known(c Component) error {
	if slices.Contains(Components, c) {
		return nil
	}
	return fmt.Errorf("the table of sandboxes has a component %q, which is none", c)
}

// runtime is what is known of a runtime; the zero value where nothing is.
func (t *table) runtime(name string) runtimeRule {
	for _, r := range t.Runtimes {
		if r.Name == name {
			return r
		}
	}
	return runtimeRule{}
}
