package sandbox

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"tare/internal/lib/files"
)

// namedState reads state in directories that command lines name. Any process may name any directory, so a census reads
// at most maxNamed of them, maxStates names in each, and maxStates files of maxNamedBytes altogether.
type namedState struct {
	dirs         []namedDir
	files, bytes int // that may still be read for this census
}

const (
	maxNamed      = 16
	maxNamedBytes = 16 << 20
)

// namedDir is a directory named by a command line.
type namedDir struct {
	path, runtime string
	info          fs.FileInfo
	names         []string // in order, as of the beginning of this census
}

// add adds a directory, and reports whether it did. It accepts each directory once, whatever its path, and only those
// to which nobody can write but root, or the user whose process named it.
func (n *namedState) add(tree files.Tree, dir, runtime string, user uint32) bool {
	if len(n.dirs) >= maxNamed {
		return false
	}
	info, err := tree.Stat(dir)
	if err != nil || files.OwnedBy(0)(info) != nil && files.OwnedBy(user)(info) != nil ||
		slices.ContainsFunc(n.dirs, func(d namedDir) bool { return d.runtime == runtime && os.SameFile(d.info, info) }) {
		return false
	}
	n.dirs = append(n.dirs, namedDir{path: dir, runtime: runtime, info: info})
	return true
}

// list lists the directories. It must be called once for each census.
func (n *namedState) list(tree files.Tree) {
	n.files, n.bytes = maxStates, maxNamedBytes
	for i := range n.dirs {
		n.dirs[i].names, _ = tree.Names(n.dirs[i].path, maxStates) // it may be gone
	}
}

// read returns what the directories say about an id; nil if that is nothing. A container may name a directory that it
// created itself. Its content must therefore not unite sandboxes, nor assign a process whose command line does not name
// the same sandbox (gathering.assign).
func (n *namedState) read(t *table, root, id string) (found *state) {
	for i := range n.dirs {
		d := &n.dirs[i]
		for _, f := range t.runtime(d.runtime).States {
			if !f.Anywhere {
				continue
			}
			for _, name := range d.match(f.File, id) {
				if n.files <= 0 || n.bytes <= 0 {
					return found
				}
				n.files--
				text, err := files.Read(filepath.Join(root, d.path, name), maxState)
				n.bytes -= len(text)
				s := &state{pids: map[int]role{}}
				if err != nil || f.Parse(s, name, text) != nil {
					continue
				}
				if found == nil {
					found = &state{runtime: d.runtime, pids: map[int]role{}}
				}
				maps.Copy(found.pids, s.pids)
			}
		}
	}
	return found
}

// match returns the names in a directory that a stateFiles.File stands for.
func (d *namedDir) match(file, id string) (names []string) {
	before, after, wild := strings.Cut(strings.Replace(file, "{id}", id, 1), "{sandbox}")
	first, _ := slices.BinarySearch(d.names, before)
	for _, name := range d.names[first:] {
		rest, begins := strings.CutPrefix(name, before)
		if !begins {
			break
		}
		if strings.HasSuffix(rest, after) && (wild || rest == "") {
			names = append(names, name)
		}
	}
	return names
}

// keeps reports whether a directory is one of those in which the rules look for the state of the given runtime.
func (t *table) keeps(runtime, dir string) bool {
	return slices.ContainsFunc(t.States, func(r stateRule) bool {
		match, _ := path.Match(path.Dir(r.Path), dir)
		return match && r.Runtime == runtime
	})
}
