// Package metric describes metrics as data: what a value measures, which direction is better, how the values of
// several machines become one, and what a metric depends on in a trial. Code that pools, compares, models or shows
// values uses the definition, and never infers a meaning from a metric's name.
package metric

import (
	"cmp"
	"slices"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
)

// Need is something about a trial that a metric depends on. A gate that trips breaks needs, and so voids the metrics
// that have them; all other metrics of the trial stay valid.
type Need string

// Direction is the direction in which a metric is better.
type Direction string

// The directions.
const (
	Neither Direction = ""
	Lower   Direction = "lower"
	Higher  Direction = "higher"
)

// Pool says how to combine the values of a trial's nodes, each of which ran the whole trial, into one value.
type Pool string

// The pools. Costs per piece of work are sums of costs over sums of work, which is the mean weighted by the work.
const (
	// computed again from the merged histograms and counts of loads and of the subject's work: quantiles are never
	// averaged
	Merged        Pool = "merged"
	Sum           Pool = "sum"            // absent if a node failed, because the sum would lack its value
	Largest       Pool = "largest"        // of any node
	Mean          Pool = "mean"           // of the nodes, with equal weights
	PerConnection Pool = "per connection" // the mean, weighted by the connections that each node opened
	PerRequest    Pool = "per request"    // the mean, weighted by the requests that each node answered
	PerEvent      Pool = "per event"      // the mean, weighted by the events that each node made
	// the mean, weighted by the events that each node's tracer should deliver, which may include events of other processes
	PerExpected Pool = "per expected event"
	Machine     Pool = "machine" // as PerEvent; if nodes that share a machine lack it, from the machine's ledger
	Counts      Pool = "counts"  // a ratio of counts, each added up over the nodes
	Nodes       Pool = "nodes"   // a value of the nodes together, which none has by itself
)

// The ranks: metrics are shown in this order, and within a rank in the order in which they are defined.
const (
	RankEvents = iota + 1
	RankWork
	RankBPF
	RankCPU
	RankLatency
	RankThroughput
	RankMemory
	RankOther
	RankGenerator // how late the load generator was: a quality of the measurement, not of the subject
)

// Definition is one metric as data. The record of a run keeps the definitions of its metrics, so that later versions
// of Tare can read it.
type Definition struct {
	Name   string    `json:"name"` // ends in its unit, and means the same in every experiment
	Unit   string    `json:"unit"` // as in package quantity: "seconds", "bytes per flush", "part"
	Better Direction `json:"better,omitempty"`
	How    string    `json:"how"`  // how it is measured; one or more sentences
	Rank   int       `json:"rank"` // order among the metrics that are shown with it
	Pool   Pool      `json:"pool"`

	// Cost is true if the value may be a fixed cost plus costs that grow with factors, so that a line through its levels
	// means something. It is false for a quantile or a maximum, because queues do not add up; for throughput, which is
	// what was asked for; and for a share, which has no fixed part.
	Cost bool `json:"cost,omitempty"`

	Needs []Need `json:"needs"` // what it depends on in a trial; empty if nothing can void it, and never null

	// Answers is true if the value counts the requests that loads answered in the window, or is divided by their number
	// (load.Result.Answers). A trial of an earlier version that does not know that number does not give the metric.
	Answers bool `json:"answers,omitempty"`

	// Rule numbers the ways in which versions of Tare have measured the metric. It is raised when the same trial gives
	// another value than before, and values by different rules are not compared. Complete never fills it in.
	Rule int `json:"rule,omitempty"`

	// Assumed is true if the run recorded no definitions, so that its version may not have had the metric.
	Assumed bool `json:"-"`

	Headline bool `json:"headline,omitempty"` // answers mention it, so a run that continues until it is precise checks it
	Lead     bool `json:"lead,omitempty"`     // it has a column in the first table of a report
	// answers mention it only if a load runs as fast as it can: at a fixed rate it shows just that rate
	Free bool `json:"free,omitempty"`
	Tail bool `json:"tail,omitempty"` // it describes the slowest part of the samples, whose intervals stay wide
	// it shows that a subject is too slow, so the subject's slowness does not void it
	Outcome bool `json:"outcome,omitempty"`

	// Clause states the value in an answer, after the name of an arm; {} stands for the value: "holds {} of page cache".
	// If the baseline has the metric too, the difference follows. Empty: answers mention the metric only if it differs. A
	// clause that begins with "of which" ("of which {} stay") continues the clause of the metric before it.
	Clause string `json:"clause,omitempty"`

	// Family groups metrics that describe the same thing: a sentence mentions only one of them. Empty: no group.
	Family string `json:"family,omitempty"`

	// Ladder names the steps that this metric is one of: "system calls". Tables and charts put them side by side in the
	// order in which they are defined, and an answer mentions all of them together. Rung names this step: "getpid". Both
	// are empty for other metrics.
	Ladder string `json:"ladder,omitempty"`
	Rung   string `json:"rung,omitempty"`

	// Limit is the largest value at which the subject counts as usable; charts draw it. 0: no limit.
	Limit float64 `json:"limit,omitempty"`

	// Tally is the name of an exact count in a table of sums over all trials: "delivered". TallyOf is the metric whose
	// count includes this one.
	Tally   string `json:"tally,omitempty"`
	TallyOf string `json:"tally_of,omitempty"`

	// Before is the metric that has the same quantity before the load began, and After the one that has it after the
	// subject's work was reduced.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`

	// Histogram and Quantile define a metric that is a quantile of a histogram of the loads: the histogram's name
	// (package load), and the quantile, such as 0.99. Both are empty for other metrics.
	Histogram string  `json:"histogram,omitempty"`
	Quantile  float64 `json:"quantile,omitempty"`

	// Undisturbed is true if it covers only requests that no stall of the machine touched.
	Undisturbed bool `json:"undisturbed,omitempty"`

	// What and Per name a cost per piece of work in answers: "kernel time" per "connection". An answer mentions only one
	// of the costs that have the same What. Both are empty for other metrics.
	What string `json:"what,omitempty"`
	Per  string `json:"per,omitempty"`

	// Sum begins the sentence of an answer that adds up the parts of this metric; {} stands for the value: "a request
	// takes {} of the machine's CPU time". PartOf names the metric of which this one is a part: in each trial the parts
	// add up to it. Part is the part's name in answers: "applications".
	Sum    string `json:"sum,omitempty"`
	PartOf string `json:"part_of,omitempty"`
	Part   string `json:"part,omitempty"`

	// Plan is set for a metric in CPUs or bytes that plans add up. It names what uses them, such as "eBPF programs"; for
	// the metric of a component, plans show the name of the component instead. Metrics of one unit with a Plan count
	// different uses (except for eBPF programs in the subject's processes). Empty: plans leave the metric out.
	Plan string `json:"plan,omitempty"`

	// Of is set for a metric of all nodes together that is made from a metric of each node, and names the latter. What
	// voids that metric at a node voids this one.
	Of string `json:"of,omitempty"`

	// Instead is the metric that replaces this one in answers if other processes disturbed the machine. A trial that has
	// that metric need not be repeated for this one.
	Instead string `json:"instead,omitempty"`
}

// Set holds definitions by name.
type Set map[string]Definition

// NewSet makes a Set from a list, in which later definitions replace earlier ones of the same name.
func NewSet(all []Definition) Set {
	return lists.Keyed(all, func(d Definition) (string, Definition) { return d.Name, d })
}

// Of returns the definition of a name. For an undefined name, as in a record that another program wrote, only the unit
// is known, from the end of the name.
func (s Set) Of(name string) Definition {
	if d, ok := s[name]; ok {
		return d
	}
	return Definition{Name: name, Unit: quantity.UnitOf(name), Rank: RankOther, Pool: Mean, Needs: []Need{}}
}

// Counterpart returns the metric that replaces the named one if other processes disturbed the machine, or else the
// metric that the named one replaces, or "" if there is neither.
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

// Quantiles returns the metrics that are quantiles of a histogram of the loads, from the lowest.
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

// QuantileOf returns the metric that is a quantile of a histogram of the loads, or "".
func (s Set) QuantileOf(histogram string, q float64) string {
	for _, d := range s.Quantiles(histogram) {
		if d.Quantile == q {
			return d.Name
		}
	}
	return ""
}

// FamilyOf returns the family of a metric, or its own name if it has none.
func (s Set) FamilyOf(name string) string { return cmp.Or(s.Of(name).Family, name) }

// Complete fills in fields that the version that wrote the definitions did not have, from today's definitions of the
// same names: Answers, Lead, Limit, Tally, TallyOf, Before, After and Plan; and, if none of them is set, Family,
// Histogram, Quantile, Undisturbed, What and Per. If written is nil, it returns today's definitions with Rule 0 and
// Assumed set.
func Complete(written, today []Definition) []Definition {
	if written == nil {
		all := slices.Clone(today)
		for i := range all {
			all[i].Rule, all[i].Assumed = 0, true
		}
		return all
	}
	known := NewSet(today)
	all := slices.Clone(written)
	for i := range all {
		d := &all[i]
		now, is := known[d.Name]
		d.Limit, d.Before, d.After = cmp.Or(d.Limit, now.Limit), cmp.Or(d.Before, now.Before), cmp.Or(d.After, now.After)
		d.Lead, d.Plan = d.Lead || now.Lead, cmp.Or(d.Plan, now.Plan)
		d.Answers = d.Answers || now.Answers
		d.Tally, d.TallyOf = cmp.Or(d.Tally, now.Tally), cmp.Or(d.TallyOf, now.TallyOf)
		if !is || d.Family != "" || d.Histogram != "" || d.Undisturbed || d.What != "" {
			continue
		}
		d.Family, d.Histogram, d.Quantile = now.Family, now.Histogram, now.Quantile
		d.Undisturbed, d.What, d.Per = now.Undisturbed, now.What, now.Per
	}
	return all
}

// Compare orders names of metrics as they are shown. Metrics of one rank are equal.
func (s Set) Compare(a, b string) int { return cmp.Compare(s.Of(a).Rank, s.Of(b).Rank) }
