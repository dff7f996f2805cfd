package kind

import (
	"slices"
	"strings"

	"tare/internal/lib/param"
	"tare/internal/scale/charge"
)

// Marked is a subject that runs outside Tare and applies to pods with certain marks. It has no process, so its arms
// run only in a cluster.
type Marked interface {
	Marks(param.Values) (Marks, error)
}

// Marks are the marks of pods to which a subject applies, and the rules for what counts as its cost in the cluster.
type Marks struct {
	Labels, Annotations map[string]string
	RuntimeClass        string
	Applied             map[string]string // annotations that the subject adds to pods to which it applies
	Components          []charge.Rule     // rules that each name a component
	Parts               []string          // the parts whose pods get these marks; empty: all
	Logs                *Logs             // where the subject delivers the events of a load; nil: nowhere
}

// Logs names the containers of an installed subject whose logs have a line for each event that the subject delivers,
// and recognizes those lines.
type Logs struct {
	Of    charge.Rule // selects the containers; its namespace is a name, not a pattern
	Event func(line []byte) bool
}

// On returns the marks of the pod of a part, or of a copy of it; nil if it gets none.
func (m *Marks) On(part string) *Marks {
	whole, _, _ := strings.Cut(part, "_")
	if m == nil || len(m.Parts) > 0 && !slices.Contains(m.Parts, whole) {
		return nil
	}
	return m
}

// InPods reports whether a component's rule matches containers in the pods of the trial, such as a sidecar.
func InPods(r *charge.Rule) bool { return r.Container != "" && r.Namespace == "" && r.Pod == "" }
