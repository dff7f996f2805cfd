package sandbox

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"tare/internal/lib/files"
	"tare/internal/lib/lists"
)

// Whose is what the path of a control group says about its owner.
type Whose struct {
	ID      string // of a container or sandbox, by validID; empty where the path names none
	IDGroup string // path of the group that has the id
	Pod     string // uid of a pod, with dashes
	PodPath string // path of the pod's group; empty where the path does not have it
	Place   Place
	Engine  string // empty where the path does not say it
}

// WhoseIs reads the path of a control group. The deepest container or pod in it counts.
func WhoseIs(group string) Whose {
	w := builtin().locate(group)
	return Whose{ID: w.id, IDGroup: w.idPath, Pod: w.pod, PodPath: w.podPath, Place: w.place, Engine: w.engine}
}

// About is what the files of runtimes and engines say about a container, as it is there: others may have written it.
type About struct {
	Sandbox   string // id of the container that holds its pod open
	IsSandbox bool   // it is that container, or the virtual machine that stands for a pod
	Pod       Pod
	Container string // its name
	Image     string
	Labels    map[string]string // of the container, of the pod where it is the sandbox; nil where no file has them
}

// Places is where the files of runtimes and engines are. It is for one goroutine.
type Places struct {
	Tree files.Tree // with Below, the home of a user who runs an engine without root
	User uint32     // the owner of the files

	exists map[string]bool // directories that were looked for
}

// NotFound says why no file has the name of a container.
type NotFound struct {
	// Absent are directories of its engine, or of all where it is not known, of which none exists: what no one mounted
	// where Tare is in a container. Empty where one exists.
	Absent []string
	Denied error // a file or a directory may not be read; nil where all may
}

// maxNamespaces bounds the directories that a wildcard stands for, such as containerd's namespaces.
const maxNamespaces = 64

// Refresh has directories looked for again. Until then one that does not exist costs nothing more.
func (p *Places) Refresh() { clear(p.exists) }

// About reads what is known of a container. engine is its engine where the path of its group says so, else empty.
func (p *Places) About(id, engine string) (About, *NotFound) {
	rules := builtin().States
	if p.Tree.Below != "" {
		rules = builtin().Homes
	}
	ofEngine := engine != "" && slices.ContainsFunc(rules, func(r stateRule) bool { return r.Engine == engine })
	why, exists := &NotFound{}, false
	found := &state{}
	for i := range rules {
		r := &rules[i]
		if !r.bundle || engine != "" && r.Engine != "" && r.Engine != engine {
			continue
		}
		counts := !ofEngine || r.Engine == engine // what several engines use says nothing of one that has a place
		if !p.has(r.fixed) {
			if counts {
				why.Absent = lists.Include(why.Absent, r.fixed)
			}
			continue
		}
		exists = exists || counts
		s, err := p.read(r, id)
		if s != nil {
			found.merge(s)
		}
		if found.Container != "" || found.IsSandbox {
			return found.About, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			why.Denied = err
		}
	}
	if exists {
		why.Absent = nil
	}
	return About{}, why
}

// has says whether a directory exists, or may.
func (p *Places) has(dir string) bool {
	exists, known := p.exists[dir]
	if !known {
		if p.exists == nil {
			p.exists = map[string]bool{}
		}
		exists = !errors.Is(p.Tree.Check(dir), fs.ErrNotExist)
		p.exists[dir] = exists
	}
	return exists
}

// read reads what the files of one rule say. It is nil without an error where they say nothing.
func (p *Places) read(r *stateRule, id string) (*state, error) {
	if !validID(id) {
		return nil, nil
	}
	names, err := p.expand(strings.ReplaceAll(r.Path, "{id}", id))
	for _, name := range names {
		var text []byte
		if text, err = p.Tree.Read(name, maxState, files.OwnedBy(p.User)); err != nil {
			continue
		}
		if s := r.about(id); r.parse(s, name, text) == nil {
			return s, nil
		}
	}
	return nil, err
}

// expand puts the names of directories in for a wildcard, which stands for a whole element of a path.
func (p *Places) expand(pattern string) ([]string, error) {
	above, below, wild := strings.Cut(pattern, "/*/")
	if !wild {
		return []string{pattern}, nil
	}
	entries, err := p.Tree.Names(above, maxNamespaces)
	var names []string
	for _, e := range entries {
		if validID(e) {
			names = append(names, path.Join(above, e, below))
		}
	}
	return names, err
}

// fixedPart is what must exist of a directory that may have wildcards. Below /run it is that of the engine, because
// others in it are made when they are first needed.
func fixedPart(dir string) string {
	elements := strings.Split(dir, "/")
	if i := slices.IndexFunc(elements, func(e string) bool { return strings.ContainsAny(e, `*?[\{`) }); i >= 0 {
		elements = elements[:i]
	}
	if len(elements) > 3 && elements[1] == "run" {
		elements = elements[:3]
	}
	return strings.Join(elements, "/")
}
