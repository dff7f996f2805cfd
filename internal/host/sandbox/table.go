package sandbox

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"
)

//go:embed table.yaml
var tableYAML []byte

// table is what is known of runtimes, as table.yaml has it.
type table struct {
	IDs         map[string]string `yaml:"ids"`
	Paths       []pathRule        `yaml:"paths"`
	Processes   []processRule     `yaml:"processes"`
	Threads     []threadRule      `yaml:"threads"`
	Runtimes    []runtimeRule     `yaml:"runtimes"`
	States      []stateRule       `yaml:"states"`
	Annotations annotationKeys    `yaml:"annotations"`
	Rows        []row             `yaml:"rows"`
	Findings    []findingRule     `yaml:"findings"`
}

// expression is a regular expression that must match the whole of a string. The zero value matches everything.
type expression struct {
	text string
	*regexp.Regexp
}

func (e *expression) UnmarshalYAML(unmarshal func(any) error) error { return unmarshal(&e.text) }

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
	Match   expression `yaml:"match"`
	Under   expression `yaml:"under"` // the element above it
	Not     expression `yaml:"not"`
	Place   Place      `yaml:"place"`
	Engine  string     `yaml:"engine"`
	Runtime string     `yaml:"runtime"`
	Flavour string     `yaml:"flavour"`
	Driver  string     `yaml:"driver"`
}

// processRule is for a process.
type processRule struct {
	Program   expression  `yaml:"program"` // base name of its command
	Comm      expression  `yaml:"comm"`
	Args      expression  `yaml:"args"` // the command line, joined with spaces
	Component Component   `yaml:"component"`
	Runtime   string      `yaml:"runtime"`
	ID        []idSource  `yaml:"id"`
	Required  bool        `yaml:"required"`  // it is no match without an id
	Threads   bool        `yaml:"threads"`   // look at its threads
	Shared    bool        `yaml:"shared"`    // it serves all sandboxes
	Kernel    bool        `yaml:"kernel"`    // a thread of the kernel, that Comm's pid says who it works for
	Inside    bool        `yaml:"inside"`    // only in the group of a container
	Unsettled bool        `yaml:"unsettled"` // it will become something else: look again
	Children  Component   `yaml:"children"`  // of all that descends from it in the same sandbox
	State     *stateInArg `yaml:"state"`
}

// idSource is where a command line names a sandbox.
type idSource struct {
	Flag      string     `yaml:"flag"`  // the value of this flag ("-id X", "--id=X"); else any argument
	Last      bool       `yaml:"last"`  // the last argument
	Match     expression `yaml:"match"` // that the value must match, with a group id; else the value is the id
	Runtime   string     `yaml:"runtime"`
	Container bool       `yaml:"container"` // it names a container of the sandbox
}

// stateInArg is a flag that says where a runtime keeps its state.
type stateInArg struct {
	Flag   string `yaml:"flag"`
	Format string `yaml:"format"`
}

type threadRule struct {
	Comm      expression `yaml:"comm"`
	Component Component  `yaml:"component"`
	Process   Component  `yaml:"process"` // what its process then is
}

type runtimeRule struct {
	Name        string      `yaml:"name"`
	VM          bool        `yaml:"vm"`
	GuestMemory []Component `yaml:"guest_memory"` // whose shared memory is the application's
}

// stateRule is where a runtime keeps its state; see state.go.
type stateRule struct {
	Path    string `yaml:"path"`
	Format  string `yaml:"format"`
	Runtime string `yaml:"runtime"`
	Flavour string `yaml:"flavour"`
	Engine  string `yaml:"engine"`
}

// annotationKeys are the keys of an OCI configuration, in the order in which they are looked for.
type annotationKeys struct {
	Sandbox       []string `yaml:"sandbox"`
	PodUID        []string `yaml:"pod_uid"`
	PodName       []string `yaml:"pod_name"`
	PodNamespace  []string `yaml:"pod_namespace"`
	ContainerName []string `yaml:"container_name"`
	Overhead      []string `yaml:"overhead"`
	SandboxMemory []string `yaml:"sandbox_memory"`
}

// places are those that all of a component must be charged to; nil is anywhere.
type places struct {
	CPU    []Place `yaml:"cpu"`
	Memory []Place `yaml:"memory"`
}

// row is one way in which a sandbox can be arranged.
type row struct {
	Name           string               `yaml:"name"`
	Title          string               `yaml:"title"`
	Runtime        string               `yaml:"runtime"`
	RuntimeAny     []string             `yaml:"runtime_any"`
	Flavour        string               `yaml:"flavour"`
	Engine         string               `yaml:"engine"`
	EngineNot      []string             `yaml:"engine_not"`
	Driver         string               `yaml:"driver"`
	OverheadDriver string               `yaml:"overhead_driver"`
	Hierarchy      string               `yaml:"hierarchy"` // that counts memory: v1 or v2
	Pod            *bool                `yaml:"pod"`
	Program        string               `yaml:"program"` // of the VMM
	Has            []Component          `yaml:"has"`
	Absent         []Component          `yaml:"absent"`
	Components     map[Component]places `yaml:"components"`
}

// findingRule is something that is worth saying of a sandbox.
type findingRule struct {
	Code         string    `yaml:"code"`
	Row          string    `yaml:"row"`
	Component    Component `yaml:"component"`
	Hierarchy    string    `yaml:"hierarchy"`
	Pod          *bool     `yaml:"pod"`
	CPU          []Place   `yaml:"cpu"`
	Memory       []Place   `yaml:"memory"`
	LeaderMemory []Place   `yaml:"leader_memory"` // of the process that a thread belongs to
	Any          []Place   `yaml:"any"`           // its CPU time or its memory
	Left         Place     `yaml:"left"`          // a group of that kind holds more than its processes
	EmptyGroups  bool      `yaml:"empty_groups"`
	Says         string    `yaml:"says"`
}

// builtin is the table that is compiled in. A test parses it, so that it cannot be wrong.
var builtin = sync.OnceValues(func() (*table, error) { return parseTable(tableYAML) })

// parseTable reads a table and compiles its expressions.
func parseTable(text []byte) (*table, error) {
	var t table
	if err := yaml.UnmarshalWithOptions(text, &t, yaml.Strict()); err != nil {
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
