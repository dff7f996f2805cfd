package record

import "encoding/json"

// Pictured is what any guest can add to its evidence for the report to show: amounts in the course of a trial, and who
// is charged for them.
type Pictured struct {
	Series []Series `json:"series,omitempty"`
	Places []Place  `json:"places,omitempty"`
}

// Series is how much of something there was at moments of a trial, in parts that add up to the whole of each moment.
type Series struct {
	Name    string       `json:"name"`    // what it is, and by what it is divided: the title of its chart
	Unit    string       `json:"unit"`    // as package quantity has them
	Seconds []float64    `json:"seconds"` // of each moment, since the window opened: before that it is negative
	Parts   []SeriesPart `json:"parts"`   // those with one Of side by side
}

// SeriesPart is one part of a series.
type SeriesPart struct {
	Of     string     `json:"of"`   // the component, or the place that is charged
	Kind   string     `json:"kind"` // of it, such as the kind of page
	Values []*float64 `json:"values"`
}

// Place is a group, or several, that are charged for what runs in a trial, over the window.
type Place struct {
	Name string `json:"name"`
	// HardBytes and SoftBytes are what the kernel charges it at the end of the window, CPUs the CPU time per second of
	// the window; nil if not read.
	HardBytes *float64 `json:"hard_bytes"`
	SoftBytes *float64 `json:"soft_bytes"`
	CPUs      *float64 `json:"cpus"`
	// Kubernetes is what its kubelet would report for the pod whose group this is (the working set); nil: it reads
	// another group.
	Kubernetes *float64 `json:"kubernetes_bytes,omitempty"`

	Components []PlacedComponent `json:"components,omitempty"`
}

// PlacedComponent is the processes and threads of a component that belong to a place. Bytes are the resident memory
// (PSS) of processes that would be charged here for the next page that they touch, which is not what the place is
// charged: kernel memory is not in it, mapped files that others paid for are, and pages stay where they were charged
// when a process is moved.
type PlacedComponent struct {
	Component string   `json:"component"`
	Bytes     *float64 `json:"bytes"`
	CPUs      *float64 `json:"cpus"`
}

// Pictured is what the evidence of one guest has to show. Evidence that is in another form has nothing.
func (t *Trial) Pictured(guest string) (p Pictured) {
	if raw, has := t.Evidence[guest]; has && json.Unmarshal(raw, &p) != nil {
		return Pictured{}
	}
	return p
}
