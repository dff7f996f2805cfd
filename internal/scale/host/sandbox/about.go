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

// Whose holds what the path of a control group shows about the group's owner.
type Whose struct {
	ID      string // of a container or sandbox, checked by validID; empty if the path contains none
	IDGroup string // path of the group with the id
	Pod     string // uid of a pod, with dashes
	PodPath string // path of the pod's group; empty if the path does not contain it
	Place   Place
	Engine  string // empty if the path does not show it
}

// WhoseIs interprets the path of a control group. The deepest container or pod in it counts.
func WhoseIs(group string) Whose {
	w := builtin().locate(group)
	return Whose{ID: w.id, IDGroup: w.idPath, Pod: w.pod, PodPath: w.podPath, Place: w.place, Engine: w.engine}
}

// About holds what the files of runtimes and engines say about a container. The text is unmodified and untrusted,
// because others may have written it.
type About struct {
	Sandbox   string // id of the container that holds its pod open
	IsSandbox bool   // it is that container, or the virtual machine that stands for a pod
	Pod       Pod
	Container string // its name
	Image     string
	// Labels are those of the container, or of its pod if it is the sandbox; nil if no file has them.
	Labels map[string]string
}

// Places finds the files of runtimes and engines. It is not safe for concurrent use.
type Places struct {
	Tree files.Tree // Below, if set, is the home of a user who runs an engine without root
	User uint32     // owner of the files

	exists map[string]bool // cached results of has
}

// NotFound explains why no file has the name of a container.
type NotFound struct {
	// Absent lists the directories of the container's engine (of all engines, if the engine is unknown) if none of them
	// exists, for example because Tare runs in a container where they are not mounted. It is empty if one exists.
	Absent []string
	Denied error // the error for a file or directory that Tare lacks permission to read; nil if there is none
}

// maxNamespaces bounds the directories that match a wildcard, such as containerd's namespaces.
const maxNamespaces = 64

// Refresh drops cached results, so that missing directories are looked for again.
func (p *Places) Refresh() { clear(p.exists) }

// About reads what is known about a container. engine is its engine if the path of its group shows it, else empty.
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
		// If an engine has its own directories, those shared by several engines are not evidence for it.
		counts := !ofEngine || r.Engine == engine
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

// has reports whether a directory exists, or may exist because it could not be checked.
func (p *Places) has(dir string) bool {
	exists, known := p.exists[dir]
	if !known {
		if p.exists == nil {
			p.exists = map[string]bool{}
		}
		_, err := p.Tree.Stat(dir)
		exists = !errors.Is(err, fs.ErrNotExist)
		p.exists[dir] = exists
	}
	return exists
}

// read parses the files of one rule. It returns nil without an error if they say nothing.
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

// expand replaces a wildcard, which stands for a whole path element, with the names of directories.
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

// fixedPart returns the directory without which no file can match dir, a pattern: the part above its first wildcard.
// Below /run it is the engine's top directory, because the directories in it are created on first use.
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
