package clusterreport

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/quantity"
)

// lead returns the first paragraphs of a report.
func lead(c *cluster.Cluster) []string {
	first := fmt.Sprintf("Of %s, %d answered", quantity.Counted(c.Asked, "node"), c.Answered)
	if c.Answered == 0 {
		return []string{first + ": nothing is known."}
	}
	if n := c.Asked - c.Answered; n > 0 {
		first += fmt.Sprintf("; %s in no figure", were(n))
	}
	all := []string{first + ".", cpuLead(c), memoryLead(c)}
	if s := c.Total.CPUs; s.Shared != nil && s.Tare != nil && *s.Tare > 0 {
		d := decimals(s.GrossKnown())
		all = append(all, fmt.Sprintf("Of the infrastructure's CPUs, %s serve single pods and %s serve whole nodes.",
			fixed(*s.Tare-*s.Shared, d), fixed(*s.Shared, d)))
	}
	if c.Spread {
		all = append(all, "What serves a node is spread over its workloads, CPU time in proportion to their gross CPU time "+
			"and memory in proportion to their gross memory. What no workload could take stays shared.")
	}
	return all
}

func were(n int) string {
	if n == 1 {
		return "the other is"
	}
	return "the others are"
}

// cpuLead returns a sentence about what used the CPUs.
func cpuLead(c *cluster.Cluster) string {
	s := c.Total.CPUs
	d := decimals(s.GrossKnown())
	number := func(v float64) string { return fixed(v, d) }
	return sentence(fmt.Sprintf("Of %s CPUs, %%s used: ", fixed(c.Capacity.CPUs, 0)), s, number,
		parts(c, func(u *cluster.Usage) cluster.Split { return u.CPUs }, number))
}

// memoryLead returns a sentence about what used the memory.
func memoryLead(c *cluster.Cluster) string {
	number := func(v float64) string { return quantity.Value(max(v, 0), quantity.Bytes) }
	of := "%s used, as hard memory: "
	if m := c.Capacity.MemoryBytes; m != nil {
		of = "Of " + number(float64(*m)) + " of memory, %s used, as hard memory: "
	}
	return sentence(of, c.Total.Hard, number,
		parts(c, func(u *cluster.Usage) cluster.Split { return u.Hard }, number))
}

// sentence returns a sentence with the net and tare of a figure, and with the parts of tare (madeOf). of is the format
// of its beginning; %s in it is replaced by gross and " were".
func sentence(of string, s cluster.Split, number func(float64) string, madeOf string) string {
	about := func(v *float64, known float64) string {
		if v == nil {
			return "about " + number(known)
		}
		return number(*v)
	}
	was := " were"
	gross := s.GrossKnown()
	var b strings.Builder
	fmt.Fprintf(&b, of, about(s.Gross, gross)+was)
	other := 0.0
	if s.Other != nil && *s.Other > 0.005*gross {
		other = *s.Other
	}
	net := s.Net
	if net != nil {
		net = new(*net - other)
	}
	fmt.Fprintf(&b, "%s by workloads", about(net, s.NetKnown()-other))
	if s.Other == nil {
		b.WriteString(" and what no rule names") // it is unknown how they divide
	}
	b.WriteString(", ")
	if other > 0 {
		fmt.Fprintf(&b, "%s by what no rule names, ", number(other))
	}
	b.WriteString(about(s.Tare, s.TareKnown()))
	if gross > 0 {
		fmt.Fprintf(&b, " (%.0f %%)", 100*s.TareKnown()/gross)
	}
	b.WriteString(" by infrastructure")
	if madeOf != "" {
		b.WriteString(": " + madeOf)
	}
	return b.String() + "."
}

// named maps components to their names in sentences.
var named = map[string]string{"sidecar": "sidecars", "cni": "CNI", "dns": "DNS", "ebpf": "eBPF", "vmm": "VMMs",
	"pause": "pause containers", "shim": "shims", "controlplane": "control plane", "runtime": "container runtime",
	"node": "services of the nodes", "system": "other system pods"}

// A sentence names the biggest components, at most maxParts, and none with less than the fraction leastPart of
// infrastructure. But if this leaves out only one component, the sentence names that one, too.
const (
	maxParts  = 6
	leastPart = 0.02
)

// parts lists the components of infrastructure, the biggest first, each with its tare of a figure.
func parts(c *cluster.Cluster, figure func(*cluster.Usage) cluster.Split, number func(float64) string) string {
	type part struct {
		name string
		v    float64
	}
	var all []part
	for i := range c.Components {
		if v := figure(&c.Components[i].Usage).TareKnown(); v > 0 {
			name := fit(c.Components[i].Component, 40)
			all = append(all, part{cmp.Or(named[name], name), v})
		}
	}
	slices.SortFunc(all, func(a, b part) int { return cmp.Or(cmp.Compare(b.v, a.v), cmp.Compare(a.name, b.name)) })
	var words []string
	rest := 0.0
	sum, large := 0.0, 0
	for _, p := range all {
		sum += p.v
	}
	for large < min(maxParts, len(all)) && all[large].v >= leastPart*sum {
		large++
	}
	for i, p := range all {
		if i < large || len(all) == large+1 {
			words = append(words, p.name+" "+number(p.v))
		} else {
			rest += p.v
		}
	}
	if rest > 0 {
		words = append(words, fmt.Sprintf("%s %s", quantity.Counted(len(all)-len(words), "other"), number(rest)))
	}
	return strings.Join(words, ", ")
}

// decimals returns the number of decimals for a figure of this size, and for those shown beside it.
func decimals(v float64) int {
	switch v = math.Abs(v); {
	case v >= 1000:
		return 0
	case v >= 3:
		return 1
	case v >= 0.3:
		return 2
	}
	return 3
}

// fixed formats a number with a fixed number of decimals, and without a minus sign if it rounds to zero.
func fixed(v float64, decimals int) string {
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Trim(s, "-0.") == "" {
		return strings.TrimPrefix(s, "-")
	}
	return s
}
