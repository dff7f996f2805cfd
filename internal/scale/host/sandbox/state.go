package sandbox

import (
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"tare/internal/lib/files"
)

// state is what runtimes keep about one container or sandbox.
type state struct {
	id, sandbox, name        string
	pod                      Pod
	runtime, flavour, engine string
	groups                   []string // paths of its control groups, as the runtime names them
	pids                     map[int]role
	overhead, memory         *uint64 // declared: podFixed; the sum of the containers without it
	overheadKey              string
}

// role is what state says of a process. A process by another start time has the pid by chance; 0 where state has none.
type role struct {
	component Component
	start     uint64
}

// merge adds what another file says of the same container.
func (s *state) merge(o *state) {
	take := func(to *string, v string) {
		if *to == "" {
			*to = v
		}
	}
	take(&s.sandbox, o.sandbox)
	take(&s.name, o.name)
	take(&s.pod.UID, o.pod.UID)
	take(&s.pod.Name, o.pod.Name)
	take(&s.pod.Namespace, o.pod.Namespace)
	take(&s.runtime, o.runtime)
	take(&s.flavour, o.flavour)
	take(&s.engine, o.engine)
	s.groups = append(s.groups, o.groups...)
	for pid, c := range o.pids {
		s.pids[pid] = c
	}
	if s.overhead == nil {
		s.overhead, s.overheadKey = o.overhead, o.overheadKey
	}
	if s.memory == nil {
		s.memory = o.memory
	}
}

// stateDir is a place that a command line named.
type stateDir struct{ dir, format, runtime string }

// states reads what runtimes keep below the root about an id. It is nil where they keep nothing.
func (t *table) states(root, id string, further []stateDir) *state {
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
	rules := t.States
	for _, d := range further {
		rules = append(rules[:len(rules):len(rules)],
			stateRule{Path: filepath.Join(d.dir, "{id}_sandbox:{sandbox}.state"), Format: d.format, Runtime: d.runtime,
				named: true})
	}
	for i := range rules {
		r := &rules[i]
		pattern := strings.NewReplacer("{id}", escapeGlob(id), "{sandbox}", "*").Replace(r.Path)
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			continue // a directory that a command line named may be any string
		}
		for _, file := range files[:min(len(files), maxStates)] {
			add(t.state(r, id, file))
		}
	}
	return found
}

// maxStates bounds the files that are read for one id, and the ids that are taken from directories of states.
const maxStates = 4096

// listed are the ids of containers that runtimes keep state for, where nothing else may name them: those of runtimes
// without an engine.
func (t *table) listed(root string) (ids []string) {
	for i := range t.States {
		r := &t.States[i]
		if r.Format == "" || r.Format == formatOCI || strings.Contains(r.Path, "*") {
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

// The formats of state.
const (
	formatOCI   = "oci"
	formatRunc  = "runc"
	formatCrun  = "crun"
	formatRunsc = "runsc"
	formatMicro = "microvm"
)

// state reads one file; nil where it cannot be read or is not what it should be: a container may go at any time.
func (t *table) state(r *stateRule, id, file string) *state {
	s := &state{id: id, runtime: r.Runtime, flavour: r.Flavour, engine: r.Engine, pids: map[int]role{}}
	if r.Format == "" {
		if _, err := os.Stat(file); err != nil {
			return nil
		}
		return s
	}
	text, err := readBounded(file, maxState)
	if err != nil {
		return nil
	}
	switch r.Format {
	case formatOCI:
		err = t.parseOCI(s, text)
	case formatRunc, formatCrun:
		err = parseRunc(s, text)
	case formatMicro:
		err = t.parseMicrovm(s, text)
	case formatRunsc:
		if _, name, ok := strings.Cut(filepath.Base(file), "_sandbox:"); ok {
			if name = strings.TrimSuffix(name, ".state"); validID(name) {
				s.sandbox = name
			}
		}
		err = parseRunsc(s, text)
	}
	if err != nil {
		return nil
	}
	if r.named {
		// A container may name a directory of its own making. So what is in it cannot unite sandboxes, nor give one to
		// a process that its command line does not say the same of (gathering.assign).
		return &state{id: id, runtime: r.Runtime, pids: s.pids}
	}
	return s
}

// readBounded reads at most n bytes of a file that others may have made.
func readBounded(file string, n int64) ([]byte, error) {
	f, err := files.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, n))
}

// parseOCI reads the config.json of an OCI bundle.
func (t *table) parseOCI(s *state, text []byte) error {
	var config struct {
		Annotations map[string]string `json:"annotations"`
		Linux       struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	t.annotate(s, config.Annotations)
	if p := config.Linux.CgroupsPath; p != "" && len(p) <= maxPath {
		s.groups = append(s.groups, p)
	}
	return nil
}

// annotate takes what annotations of an OCI configuration say.
func (t *table) annotate(s *state, annotations map[string]string) {
	value := func(keys []string) (string, string) {
		for _, k := range keys {
			if v := annotations[k]; v != "" && len(v) <= maxPath {
				return v, k
			}
		}
		return "", ""
	}
	a := &t.Annotations
	if v, _ := value(a.Sandbox); validID(v) {
		s.sandbox = v
	}
	if v, _ := value(a.PodUID); validID(v) {
		s.pod.UID = podUID(v)
	}
	s.pod.Name, _ = value(a.PodName)
	s.pod.Namespace, _ = value(a.PodNamespace)
	s.name, _ = value(a.ContainerName)
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

// parseMicrovm reads state.json of Tare's microvm (package microvm).
func (t *table) parseMicrovm(s *state, text []byte) error {
	type process struct {
		PID   int    `json:"pid"`
		Start uint64 `json:"start"`
	}
	var f struct {
		Annotations   map[string]string `json:"annotations"`
		Shim          process           `json:"shim"`
		VMM           process           `json:"vmm"`
		Virtiofsd     process           `json:"virtiofsd"`
		SandboxGroup  string            `json:"sandbox_group"`
		OverheadGroup string            `json:"overhead_group"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	t.annotate(s, f.Annotations)
	for c, p := range map[Component]process{Shim: f.Shim, VMM: f.VMM, Virtiofsd: f.Virtiofsd} {
		if p.PID > 0 {
			s.pids[p.PID] = role{c, p.Start}
		}
	}
	for _, p := range []string{f.SandboxGroup, f.OverheadGroup} {
		if p != "" && len(p) <= maxPath {
			s.groups = append(s.groups, p)
		}
	}
	return nil
}

// parseRunc reads state.json of runc and youki, or status of crun, which have the fields that matter under names of
// their own (libcontainer's BaseState; crun's libcrun_container_status_s).
func parseRunc(s *state, text []byte) error {
	var f struct {
		PID       int               `json:"pid"`
		Start     uint64            `json:"process-start-time"`
		InitPID   int               `json:"init_process_pid"`
		InitStart uint64            `json:"init_process_start"`
		Paths     map[string]string `json:"cgroup_paths"`
		Path      string            `json:"cgroup-path"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.PID > 0 {
		s.pids[f.PID] = role{Workload, f.Start}
	}
	if f.InitPID > 0 {
		s.pids[f.InitPID] = role{Workload, f.InitStart}
	}
	for _, p := range f.Paths {
		if len(p) <= maxPath {
			s.groups = append(s.groups, p)
		}
	}
	if f.Path != "" && len(f.Path) <= maxPath {
		s.groups = append(s.groups, f.Path)
	}
	return nil
}

// parseRunsc reads a state file of runsc. Pids were 32-bit numbers, and are objects in newer versions.
func parseRunsc(s *state, text []byte) error {
	var f struct {
		Gofer   json.RawMessage `json:"goferPid"`
		Sandbox struct {
			PID json.RawMessage `json:"pid"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if pid := pidOf(f.Sandbox.PID); pid > 0 {
		s.pids[pid] = role{component: Sentry}
	}
	if pid := pidOf(f.Gofer); pid > 0 {
		s.pids[pid] = role{component: Gofer}
	}
	return nil
}

// pidOf reads a pid that is a number, or the one number of an object.
func pidOf(raw json.RawMessage) int {
	var n float64
	if json.Unmarshal(raw, &n) != nil {
		var fields map[string]float64
		if json.Unmarshal(raw, &fields) != nil || len(fields) != 1 {
			return 0
		}
		for _, n = range fields {
		}
	}
	if n < 1 || n > 1<<22 || n != math.Trunc(n) {
		return 0
	}
	return int(n)
}
