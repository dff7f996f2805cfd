// Package subject is the registry of the things that Tare weighs: mesh data planes, sandbox runtimes, tracers, config stores. Each is
// a package below this one, or a program of somebody else's; to an experiment it is a command line that it starts in a control group
// of its own. Nothing that is weighed runs inside the scale.
package subject

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"tare/internal/fault"
	"tare/internal/near"
)

// Subject is one kind of thing that Tare weighs.
type Subject struct {
	Name    string // as in arms and on the command line
	Summary string // one line, for lists
	Options []Option
	// Start makes the command line. It is only called with options that the subject has; it checks their values.
	Start func(Place) (Command, error)
}

// Option is a setting of a subject, which an experiment may sweep.
type Option struct {
	Name    string
	Default string
	Summary string
}

// Place is where and with what a subject is started.
type Place struct {
	Self         string            // path of the tare binary, for subjects that are a role of it
	CgroupDir    string            // the cgroup v2 directory whose processes the subject serves or watches
	ServicesFile string            // for mesh data planes: the services (package kernelmesh has the format); else empty
	Options      map[string]string // by option name; what is missing has its default
}

// Command is how to start a subject.
type Command struct {
	Argv []string // the program and its arguments
	Role bool     // speaks package role's protocol: ready comes by message, end of its standard input ends it
}

var registry = map[string]Subject{}

// Register adds a subject; for init functions. A name that is taken is a defect, and panics.
func Register(s Subject) {
	if _, taken := registry[s.Name]; taken {
		panic("subject " + s.Name + " registered twice")
	}
	registry[s.Name] = s
}

// All is every subject, by name.
func All() []Subject {
	all := make([]Subject, 0, len(registry))
	for _, s := range registry {
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// Lookup finds a subject by name. An unknown name is a *fault.Error of code Usage with the nearest one.
func Lookup(name string) (Subject, error) {
	s, ok := registry[name]
	if !ok {
		var names []string
		for _, s := range All() {
			names = append(names, s.Name)
		}
		return Subject{}, fault.New(fault.Usage, "", near.DidYouMean(name, names), "there is no subject %q", name)
	}
	return s, nil
}

// Command is the command line that starts the subject at a place. An option that it does not have, or a value that the option cannot
// take, is a *fault.Error of code Usage.
func (s Subject) Command(p Place) (Command, error) {
	names := make([]string, len(s.Options))
	for i, o := range s.Options {
		names[i] = o.Name
	}
	options := map[string]string{}
	for _, o := range s.Options {
		options[o.Name] = o.Default
	}
	given := make([]string, 0, len(p.Options))
	for name := range p.Options {
		given = append(given, name)
	}
	slices.Sort(given)
	for _, name := range given {
		if !slices.Contains(names, name) {
			return Command{}, fault.New(fault.Usage, "subject "+s.Name, near.DidYouMean(name, names), "there is no option %q", name)
		}
		options[name] = p.Options[name]
	}
	p.Options = options
	c, err := s.Start(p)
	if err != nil {
		return Command{}, fmt.Errorf("starting subject %s: %w", s.Name, err)
	}
	if len(c.Argv) == 0 || strings.TrimSpace(c.Argv[0]) == "" {
		return Command{}, fmt.Errorf("starting subject %s: it has no command line", s.Name)
	}
	return c, nil
}
