package kind

import (
	"tare/internal/lib/param"
	"tare/internal/scale/charge"
)

// Marked is a subject that runs outside Tare and applies to pods with certain marks. It has no process: its arms run
// in a cluster only.
type Marked interface {
	Marks(param.Values) (Marks, error)
}

// Marks are what pods bear to which a subject applies, and what of the cluster is its cost.
type Marks struct {
	Labels, Annotations map[string]string
	RuntimeClass        string
	Applied             map[string]string // annotations that the subject gives pods to which it applies
	Components          []charge.Rule     // each with a component
}

// InPods reports whether a rule of a component is about containers in the pods of the trial, as a sidecar is.
func InPods(r *charge.Rule) bool { return r.Container != "" && r.Namespace == "" && r.Pod == "" }
