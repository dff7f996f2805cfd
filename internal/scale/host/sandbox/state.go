package sandbox

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tare/internal/lib/files"
)

// state holds what runtimes and engines keep about one container or sandbox.
type state struct {
	About
	id                       string // of the container or sandbox
	runtime, flavour, engine string
	groups                   []string // paths of its control groups, in the runtime's notation
	pids                     map[int]role
	overhead, memory         *uint64 // declared: podFixed, and the sum over the containers, without podFixed
	overheadKey              string
}

// role holds what state says about a process. A process with a start time other than start has reused the PID; start is
// 0 if state does not contain it.
type role struct {
	component Component
	start     uint64
}

// take sets a value that is still empty.
func take(to *string, v string) { *to = cmp.Or(*to, v) }

// merge adds what another file says about the same container.
func (s *state) merge(o *state) {
	take(&s.Sandbox, o.Sandbox)
	take(&s.Pod.UID, o.Pod.UID)
	take(&s.Pod.Name, o.Pod.Name)
	take(&s.Pod.Namespace, o.Pod.Namespace)
	take(&s.runtime, o.runtime)
	take(&s.flavour, o.flavour)
	take(&s.engine, o.engine)
	take(&s.Container, o.Container)
	take(&s.Image, o.Image)
	s.IsSandbox = s.IsSandbox || o.IsSandbox
	if s.Labels == nil {
		s.Labels = o.Labels
	}
	s.groups = append(s.groups, o.groups...)
	maps.Copy(s.pids, o.pids)
	if s.overhead == nil {
		s.overhead, s.overheadKey = o.overhead, o.overheadKey
	}
	if s.memory == nil {
		s.memory = o.memory
	}
}

// states reads what runtimes keep below root about an id. It is nil if they keep nothing.
func (t *table) states(root, id string) *state {
	var found *state
	add := func(s *state) {
		switch {
		case s == nil:
		case found == nil:
			found = s
		default:
			found.merge(s)
		}
	}
	for i := range t.States {
		r := &t.States[i]
		pattern := strings.NewReplacer("{id}", escapeGlob(id), "{sandbox}", "*").Replace(r.Path)
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			continue
		}
		for _, file := range files[:min(len(files), maxStates)] {
			add(r.read(id, file))
		}
	}
	return found
}

// maxStates bounds the files read for one id, and the ids taken from directories of state.
const maxStates = 4096

// listed returns the ids of containers that runtimes keep state for, in case nothing else names them: those of
// runtimes without an engine.
func (t *table) listed(root string) (ids []string) {
	for i := range t.States {
		r := &t.States[i]
		if r.parse == nil || r.bundle || strings.Contains(r.Path, "*") {
			continue
		}
		pattern := strings.NewReplacer("{id}", "*", "{sandbox}", "*").Replace(r.Path)
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			continue
		}
		at := strings.Count(r.Path[:strings.Index(r.Path, "{id}")], "/")
		for _, file := range files[:min(len(files), maxStates)] {
			elements := strings.Split(strings.TrimPrefix(file, strings.TrimSuffix(root, "/")), "/")
			if at >= len(elements) {
				continue
			}
			id, _, _ := strings.Cut(elements[at], "_sandbox:")
			if validID(id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// read reads one file. It returns nil if the file cannot be read or parsed: a container may disappear at any time.
func (r *stateRule) read(id, file string) *state {
	s := r.about(id)
	if r.parse == nil {
		if _, err := os.Stat(file); err != nil {
			return nil
		}
		return s
	}
	text, err := files.Read(file, maxState)
	if err != nil {
		return nil
	}
	if r.parse(s, file, text) != nil {
		return nil
	}
	return s
}

// about returns what a rule by itself implies for a container that has a file.
func (r *stateRule) about(id string) *state {
	return &state{id: id, runtime: r.Runtime, flavour: r.Flavour, engine: r.Engine, pids: map[int]role{}}
}

// parseOCI parses the config.json of an OCI bundle.
func parseOCI(s *state, _ string, text []byte) error {
	var config struct {
		Annotations map[string]string `json:"annotations"`
		Linux       struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	s.annotate(config.Annotations)
	if p := config.Linux.CgroupsPath; p != "" && len(p) <= maxPath {
		s.groups = append(s.groups, p)
	}
	return nil
}

// annotate applies the annotations of an OCI configuration.
func (s *state) annotate(found map[string]string) {
	value := func(keys []string) (string, string) {
		for _, k := range keys {
			if v := found[k]; v != "" && len(v) <= maxPath {
				return v, k
			}
		}
		return "", ""
	}
	a := &annotations
	if v, _ := value(a.Sandbox); validID(v) {
		s.Sandbox = v
	}
	if v, _ := value(a.PodUID); validID(v) {
		s.Pod.UID = podUID(v)
	}
	s.Pod.Name, _ = value(a.PodName)
	s.Pod.Namespace, _ = value(a.PodNamespace)
	s.Container, _ = value(a.Container)
	s.Image, _ = value(a.Image)
	kind, _ := value(a.Type)
	s.IsSandbox = slices.Contains(a.SandboxTypes, kind)
	for _, key := range a.Labels {
		if json.Unmarshal([]byte(found[key]), &s.Labels) == nil {
			break
		}
	}
	if v, key := value(a.Overhead); v != "" {
		var resources struct {
			Memory json.Number `json:"memory_limit_in_bytes"`
		}
		if json.Unmarshal([]byte(v), &resources) == nil {
			if n, err := strconv.ParseUint(resources.Memory.String(), 10, 63); err == nil && n > 0 {
				s.overhead, s.overheadKey = &n, key
			}
		}
	}
	if v, _ := value(a.SandboxMemory); v != "" {
		if n, err := strconv.ParseUint(v, 10, 63); err == nil && n > 0 {
			s.memory = &n
		}
	}
}
