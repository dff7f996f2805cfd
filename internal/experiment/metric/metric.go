// Package metric describes metrics as data: what a value is of, which way is better, how the values of several
// machines become one, and what of a trial it depends on. Code that pools, compares, models or shows values uses the
// definition, and never infers a meaning from a metric's name.
package metric

import (
	"cmp"
	"slices"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
)

// Need is something about a trial that a metric depends on. A gate that was tripped breaks needs, and so voids the
// metrics that have them; all other metrics of the trial stand.
type Need string

// Direction is which way of a metric is better.
type Direction string

// The directions.
const (
	Neither Direction = ""
	Lower   Direction = "lower"
	Higher  Direction = "higher"
)

// Pool is how one value of a trial is made of those of its nodes, which each ran the whole of it.
type Pool string

// The ways. Costs per piece of work are sums of costs over sums of work, which is the mean weighted by the work.
const (
	// computed again from the merged histograms and counts of loads and of the subject's work: quantiles are never
	// averaged
	Merged        Pool = "merged"
	Sum           Pool = "sum"            // added up; absent if a node failed, because the sum would lack its part
	Largest       Pool = "largest"        // of any node
	Mean          Pool = "mean"           // of the nodes, each for as much as any other
	PerConnection Pool = "per connection" // the mean, by how many connections each node opened
	PerRequest    Pool = "per request"    // the mean, by how many requests each answered
	PerEvent      Pool = "per event"      // the mean, by how many events each made
	Machine       Pool = "machine"        // as PerEvent; where nodes share a machine, from the whole machine's ledger
	Counts        Pool = "counts"         // a part of counts, which are added up
	Nodes         Pool = "nodes"          // it is of the nodes together, and none has it by itself
)

// The ranks: metrics are shown in their order, and those of one rank in the order in which they are defined.
const (
	RankEvents = iota + 1
	RankWork
	RankBPF
	RankCPU
	RankLatency
	RankThroughput
	RankMemory
	RankOther
	RankGenerator // how late the load generator was: of the measurement, and not of what is measured
)

// Definition is one metric as data. Records of a run keep those of the metrics that it has, so that a newer Tare can
// read it.
type Definition struct {
	Name   string    `json:"name"` // ends in its unit, and means the same in every experiment
	Unit   string    `json:"unit"` // as package quantity has them: "seconds", "bytes per flush", "part"
	Better Direction `json:"better,omitempty"`
	How    string    `json:"how"`  // it is got; one or more sentences
	Rank   int       `json:"rank"` // among others that are shown with it
	Pool   Pool      `json:"pool"`

	// Cost says that it may be a fixed part and parts that grow with factors, so that a line through its levels means
	// something. A quantile or a maximum is none, for queues are no sums; throughput is what was asked for; and a share
	// has no fixed part.
	Cost bool `json:"cost,omitempty"`

	Needs []Need `json:"needs"` // what of a trial it depends on; empty where nothing can void it, and never null

	Headline bool `json:"headline,omitempty"` // answers speak of it, so a run that goes on until it is precise looks at it
	Lead     bool `json:"lead,omitempty"`     // it has a column in the table that a report begins with
	// answers speak of it only where a load is as fast as it can be: at a fixed rate it is the rate that it shows
	Free bool `json:"free,omitempty"`
	Tail bool `json:"tail,omitempty"` // it describes the slowest part of the samples, whose intervals stay wide
	// what a subject that is too slow shows in: its own slowness does not void it
	Outcome bool `json:"outcome,omitempty"`

	// Clause is how an answer speaks of it after the name of an arm, with {} in the place of the value: "holds {} of
	// page cache". Where the baseline has it too, the difference follows. Empty: answers name it only where it differs.
	// One that begins so ("of which {} stay") goes on with the clause of the metric before it.
	Clause string `json:"clause,omitempty"`

	// Family groups metrics that describe the same thing: a sentence names one metric of a family. Empty: it is alone.
	Family string `json:"family,omitempty"`

	// Ladder is, of a metric that is one step of several of one thing, what they are all of them: "system calls".
	// Tables and charts put them side by side in the order in which they are defined, and an answer speaks of all of
	// them together. Rung is what this one is there: "getpid". Both are left out of all others.
	Ladder string `json:"ladder,omitempty"`
	Rung   string `json:"rung,omitempty"`

	// Limit is the largest value with which the subject counts as usable; charts draw it. 0: there is no such value.
	Limit float64 `json:"limit,omitempty"`

	// Tally is, of an exact count, what a table of the sums over all trials calls it: "delivered". TallyOf is, of one that
	// is a part of another, that one's name.
	Tally   string `json:"tally,omitempty"`
	TallyOf string `json:"tally_of,omitempty"`

	// Before and After are, of a metric that is another one at another time, the name of that: before the load began, and
	// after the subject was left with less to do.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`

	// Histogram and Quantile are of a metric that is a quantile of a histogram of the loads: the histogram's name
	// (package load), and the quantile, such as 0.99. Both are left out of all others.
	Histogram string  `json:"histogram,omitempty"`
	Quantile  float64 `json:"quantile,omitempty"`

	// Undisturbed says that it is of what no stall of the machine touched.
	Undisturbed bool `json:"undisturbed,omitempty"`

	// What and Per are of a cost for each piece of work, as answers word it: "kernel time" per "connection". Of the
	// costs of one What an answer names one. Both are left out of all others.
	What string `json:"what,omitempty"`
	Per  string `json:"per,omitempty"`

	// Sum is, of a metric that others are the parts of, how an answer begins to add them up, with {} in the place of the
	// value: "a request takes {} of the machine's CPU time". PartOf is, of a part, the name of that metric: in each trial
	// the parts add up to it. Part is what the answer calls the part: "applications".
	Sum    string `json:"sum,omitempty"`
	PartOf string `json:"part_of,omitempty"`
	Part   string `json:"part,omitempty"`

	// Plan is, of CPUs or bytes that plans add up, what uses them, where that is no component: "eBPF programs". Of a
	// unit, metrics that have it count different uses (but for eBPF programs in the subject's processes). Empty: plans
	// leave the metric out.
	Plan string `json:"plan,omitempty"`

	// Of is, of a metric of all nodes together, the metric of each node that it is made of: what voids that voids this.
	Of string `json:"of,omitempty"`

	// Instead is the metric that answers in the place of this one where others disturbed the machine. A trial that
	// tells it need not be run again for this one.
	Instead string `json:"instead,omitempty"`
}

// Set is some definitions by name.
type Set map[string]Definition

// NewSet is the definitions of a list, of which later ones take the place of earlier ones of the same name.
func NewSet(all []Definition) Set {
	return lists.Keyed(all, func(d Definition) (string, Definition) { return d.Name, d })
}

// Of returns the definition of a name. For an undefined name, as in a record that another program wrote, only the unit
// is known: the name must end in it.
func (s Set) Of(name string) Definition {
	if d, ok := s[name]; ok {
		return d
	}
	return Definition{Name: name, Unit: quantity.UnitOf(name), Rank: RankOther, Pool: Mean, Needs: []Need{}}
}

// Counterpart is the metric that answers in the place of another where others disturbed the machine, and of such a
// metric the other; empty where there is none.
func (s Set) Counterpart(name string) string {
	if d := s.Of(name); d.Instead != "" {
		return d.Instead
	}
	for _, d := range s {
		if d.Instead == name && name != "" {
			return d.Name
		}
	}
	return ""
}

// Quantiles are the metrics that are quantiles of a histogram of the loads, from the lowest.
func (s Set) Quantiles(histogram string) []Definition {
	var all []Definition
	for _, d := range s {
		if d.Quantile != 0 && d.Histogram == histogram {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b Definition) int {
		return cmp.Or(cmp.Compare(a.Quantile, b.Quantile), strings.Compare(a.Name, b.Name))
	})
	return all
}

// QuantileOf is the metric that is a quantile of a histogram of the loads; empty where none is.
func (s Set) QuantileOf(histogram string, q float64) string {
	for _, d := range s.Quantiles(histogram) {
		if d.Quantile == q {
			return d.Name
		}
	}
	return ""
}

// FamilyOf is the family of a metric; of one that has none, its own name.
func (s Set) FamilyOf(name string) string { return cmp.Or(s.Of(name).Family, name) }

// Complete gives definitions that an earlier version wrote what they could not say of their metrics yet, from those
// of today of the same names: Lead, Limit, Tally, TallyOf, Before, After and Plan; and Family, Histogram, Quantile,
// Undisturbed, What and Per, of which one that says any is left as it is. Where there are no definitions, those of
// today stand for all.
func Complete(written, today []Definition) []Definition {
	if written == nil {
		return slices.Clone(today)
	}
	known := NewSet(today)
	all := slices.Clone(written)
	for i := range all {
		d := &all[i]
		now, is := known[d.Name]
		d.Limit, d.Before, d.After = cmp.Or(d.Limit, now.Limit), cmp.Or(d.Before, now.Before), cmp.Or(d.After, now.After)
		d.Lead, d.Plan = d.Lead || now.Lead, cmp.Or(d.Plan, now.Plan)
		d.Tally, d.TallyOf = cmp.Or(d.Tally, now.Tally), cmp.Or(d.TallyOf, now.TallyOf)
		if !is || d.Family != "" || d.Histogram != "" || d.Undisturbed || d.What != "" {
			continue
		}
		d.Family, d.Histogram, d.Quantile = now.Family, now.Histogram, now.Quantile
		d.Undisturbed, d.What, d.Per = now.Undisturbed, now.What, now.Per
	}
	return all
}

// Compare orders names of metrics as they are shown. Those of one rank are equal.
func (s Set) Compare(a, b string) int { return cmp.Compare(s.Of(a).Rank, s.Of(b).Rank) }
