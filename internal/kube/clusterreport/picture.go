package clusterreport

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"tare/internal/kube/cluster"
	"tare/internal/lib/quantity"
)

// picture is a bar chart that the template draws as SVG. Lengths are in pixels of that SVG.
type picture struct {
	Title  string
	Height int
	Keys   []keyed
	Bars   []bar
	Ticks  []tick
}

// keyed is an entry of the legend.
type keyed struct {
	Name  string
	Class string // CSS class: a colour and, in print, an outline
	X     int
}

// bar is a row of the chart.
type bar struct {
	Label string // the name, cut to fit
	Name  string
	Value string
	Y     int
	End   int // position of Value
	Parts []segment
}

// segment is the part of a bar for one entry of the legend.
type segment struct {
	Class    string
	X, Width string
	What     string // shown under the pointer
}

// tick is a mark on the axis, with its label.
type tick struct {
	X    int
	Text string
}

// The layout, in pixels.
const (
	barsFrom  = 250 // left end of the bars
	barsWidth = 480
	barHeight = 22
	barsTop   = 56
	maxLabel  = 34 // characters
	maxColors = 7  // coloured components; the last is "others"
)

// part is the value of a bar's segment.
type part struct {
	key   int // index of its entry in the legend
	value float64
}

// draw lays out a chart with one bar for each name. keys are the entries of the legend, and parts holds the segments of
// each bar.
func draw(title string, keys []string, names []string, parts [][]part) picture {
	p := picture{Title: title, Height: barsTop + barHeight*len(names) + 24}
	largest := 0.0
	for _, row := range parts {
		sum := 0.0
		for _, x := range row {
			sum += max(x.value, 0)
		}
		largest = max(largest, sum)
	}
	step := nice(largest / 4)
	scale := barsWidth / max(math.Ceil(largest/step)*step, 1e-9)
	for v := 0.0; v <= largest+step*0.999; v += step {
		p.Ticks = append(p.Ticks, tick{barsFrom + int(v*scale), quantity.Value(v, quantity.Count)})
	}
	for i, name := range keys {
		p.Keys = append(p.Keys, keyed{fit(name, 14), fmt.Sprintf("c%d", i), 8 + i*104})
	}
	for i, name := range names {
		b := bar{Label: fit(name, maxLabel), Name: name, Y: barsTop + i*barHeight}
		at := 0.0
		for _, x := range parts[i] {
			if x.value <= 0 {
				continue
			}
			b.Parts = append(b.Parts, segment{fmt.Sprintf("c%d", x.key), fmt.Sprintf("%.1f", barsFrom+at*scale),
				fmt.Sprintf("%.1f", x.value*scale), keys[x.key] + ": " + inCPUs(x.value) + " CPUs"})
			at += x.value
		}
		b.Value, b.End = inCPUs(at), barsFrom+int(at*scale)+6
		p.Bars = append(p.Bars, b)
	}
	return p
}

// nice rounds up to the next 1, 2 or 5 times a power of ten.
func nice(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if v <= f*power {
			return f * power
		}
	}
	return 10 * power
}

// nodesPicture charts the CPU time of nodes and shared machines by component, the busiest first. Each of the biggest
// components has its own colour.
func nodesPicture(c *cluster.Cluster, o Options) picture {
	color := map[string]int{}
	var keys []string
	for i := range c.Components { // sorted by size
		name := c.Components[i].Component
		if len(keys) == maxColors-1 {
			keys = append(keys, "others")
		}
		if len(keys) < maxColors {
			color[name] = len(keys)
			keys = append(keys, cmp.Or(named[name], name))
		} else {
			color[name] = maxColors - 1
		}
	}
	type node struct {
		name  string
		parts []part
		all   float64
	}
	var nodes []node
	add := func(name string, components []*cluster.Row) {
		n := node{name: name, parts: make([]part, len(keys))}
		for i := range n.parts {
			n.parts[i].key = i
		}
		for _, r := range components {
			n.parts[color[r.Component]].value += r.CPUs.GrossKnown()
			n.all += r.CPUs.GrossKnown()
		}
		nodes = append(nodes, n)
	}
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Usage != nil {
			add(n.Name, n.Components)
		}
	}
	for i := range c.Machines { // the usage of a shared machine that belongs to none of its nodes
		add(c.Machines[i].Label(), c.Machines[i].Components)
	}
	slices.SortStableFunc(nodes, func(a, b node) int { return cmp.Compare(b.all, a.all) })
	shown := nodes[:o.rows(len(nodes))]
	var names []string
	var parts [][]part
	for _, n := range shown {
		names, parts = append(names, n.name), append(parts, n.parts)
	}
	title := "Nodes by component, in CPUs"
	if left := len(nodes) - len(shown); left > 0 {
		title += fmt.Sprintf(" (the busiest %d of %d)", len(shown), len(nodes))
	}
	return draw(title, keys, names, parts)
}

// workloadsPicture charts the CPU time of workloads as net and tare, the largest first.
func workloadsPicture(c *cluster.Cluster, o Options) picture {
	var names []string
	var parts [][]part
	all, titles := 0, titles("workload", c.Workloads)
	for i, r := range c.Workloads {
		if r.Component != "" || r.Kind == "" && r.Namespace == "" { // it serves nodes, or no rule names it
			continue
		}
		if all++; all <= o.rows(len(c.Workloads)) {
			names = append(names, titles[i])
			parts = append(parts, []part{{0, r.CPUs.NetKnown()}, {1, r.CPUs.TareKnown()}})
		}
	}
	head := "Workloads by net and tare, in CPUs"
	if all > len(names) {
		head += fmt.Sprintf(" (the largest %d of %d)", len(names), all)
	}
	return draw(head, []string{"net", "tare"}, names, parts)
}
