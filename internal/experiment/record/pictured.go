package record

import "encoding/json"

// Pictured is a part of a guest's evidence that the report shows in charts and tables, whatever the guest: amounts over
// the course of a trial, and the groups that are charged for them.
type Pictured struct {
	Series []Series `json:"series,omitempty"`
	Places []Place  `json:"places,omitempty"`
}

// Series is an amount at moments of a trial, divided into parts that add up to the whole at each moment.
type Series struct {
	Name    string       `json:"name"`    // the title of its chart: what is measured, and how it is divided into parts
	Unit    string       `json:"unit"`    // as in package quantity
	Seconds []float64    `json:"seconds"` // time of each moment since the window opened; negative before that
	Parts   []SeriesPart `json:"parts"`   // parts with the same Of are adjacent
}

// SeriesPart is one part of a series.
type SeriesPart struct {
	Of     string     `json:"of"`   // the component, or the place that is charged
	Kind   string     `json:"kind"` // such as the kind of page
	Values []*float64 `json:"values"`
}

// Place is a control group, or several, to which use in a trial is charged, measured over the window.
type Place struct {
	Name string `json:"name"`
	// HardBytes and SoftBytes are the kernel's charges at the end of the window, and CPUs the CPU time per second of the
	// window; nil if not read.
	HardBytes *float64 `json:"hard_bytes"`
	SoftBytes *float64 `json:"soft_bytes"`
	CPUs      *float64 `json:"cpus"`
	// Kubernetes is the working set that the kubelet would report for the pod of this group, in bytes; nil: the kubelet
	// reads another group.
	Kubernetes *float64 `json:"kubernetes_bytes,omitempty"`

	Components []PlacedComponent `json:"components,omitempty"`
}

// PlacedComponent holds the processes and threads of a component that belong to a place. Bytes is the resident memory
// (PSS) of processes whose next touched page would be charged to the place. It differs from the place's charge: it
// lacks kernel memory, includes mapped files that others paid for, and follows a process that is moved, while its
// pages stay charged where they were.
type PlacedComponent struct {
	Component string   `json:"component"`
	Bytes     *float64 `json:"bytes"`
	CPUs      *float64 `json:"cpus"`
}

// Pictured returns the Pictured in the evidence of one guest. Evidence in another form has none.
func (t *Trial) Pictured(guest string) (p Pictured) {
	if raw, has := t.Evidence[guest]; has && json.Unmarshal(raw, &p) != nil {
		return Pictured{}
	}
	return p
}
