package clusterreport

import (
	"fmt"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/report"
	"tare/internal/results/screen"
)

// ScreenTables returns the tables of a cluster on the screen.
func ScreenTables() []screen.Table {
	return lists.Map(cluster.Views(), func(view string) screen.Table {
		return screen.Table{Name: view + "s", Last: view, None: "no " + view + "s", Amount: screen.InCPUs,
			Columns: []screen.Column{
				{Title: "CPUs", Cells: 8}, {Title: "net", Cells: 8}, {Title: "tare", Cells: 8},
				{Title: "hard", Cells: 8}, {Title: "net", Cells: 8}, {Title: "tare", Cells: 8},
				{Title: "eBPF", Cells: 8, Least: 100}, {Title: "work.set", Cells: 9, Least: 110},
			}}
	})
}

// Picture returns an account for the screen. The account must have rows of containers.
func Picture(c *cluster.Cluster) *screen.Picture {
	b := &c.Capacity
	p := &screen.Picture{Of: quantity.Counted(c.Asked, "node"), End: c.End, Seconds: c.End.Sub(c.Start).Seconds(),
		CPUs: b.CPUs, Capacity: b.Capacity, Busy: min(max((b.Capacity-b.Idle-b.Steal)/max(b.Capacity, 1e-9), 0), 1),
		Parts: budgetParts(c)}
	if c.Answered < c.Asked {
		p.Of = fmt.Sprintf("%d of %s", c.Answered, p.Of)
	}
	for _, r := range remarks(c) {
		p.Warnings = append(p.Warnings, r[0]+": "+r[1])
	}
	parts := map[string][]*screen.Row{} // by key of the workload
	for _, r := range c.Containers {
		key := workloadOf(r)
		part := screenRow(r, title("container", r), p.Seconds)
		part.Full, part.Name = part.Name, strings.TrimPrefix(part.Name, r.Namespace+"/")
		parts[key] = append(parts[key], part)
	}
	for _, view := range cluster.Views() {
		var rows []*screen.Row
		all := c.By(view)
		names := titles(view, all)
		for i, r := range all {
			rows = append(rows, screenRow(r, names[i], p.Seconds))
			if view == "workload" && r.Workload != "" {
				rows[len(rows)-1].Below = parts[workloadOf(r)]
			}
		}
		if view == "node" {
			rows = nodeRows(c, rows)
		}
		p.Rows = append(p.Rows, screen.Rows{All: rows})
	}
	return p
}

// nodeRows adds the components of each node and machine to its row, and a row for each node that did not answer.
func nodeRows(c *cluster.Cluster, rows []*screen.Row) []*screen.Row {
	at := 0 // index in rows: they have the nodes that answered and the machines, in their order in c
	below := func(components []*cluster.Row) {
		for _, r := range components {
			part := screenRow(r, title("component", r), c.End.Sub(c.Start).Seconds())
			part.Key = rows[at].Key + "/" + part.Key
			rows[at].Below = append(rows[at].Below, part)
		}
		at++
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Failed != "" {
			rows = append(rows, &screen.Row{Key: "failed/" + n.Name, Name: n.Name + ": " + n.Failed})
		}
		if n.Usage != nil {
			below(n.Components)
		}
	}
	for i := range c.Machines {
		below(c.Machines[i].Components)
	}
	return rows
}

// keyOf returns a key that identifies a row in every account.
func keyOf(r *cluster.Row) string {
	return strings.Join([]string{r.Namespace, r.Kind, r.Workload, r.Pod, r.Container, r.Node, r.Component}, "/")
}

// workloadOf returns the key of the workload to which a row belongs.
func workloadOf(r *cluster.Row) string {
	return keyOf(&cluster.Row{Namespace: r.Namespace, Kind: r.Kind, Workload: r.Workload})
}

// screenRow converts a row with the given title to one for the screen. seconds is the length of the window.
func screenRow(r *cluster.Row, name string, seconds float64) *screen.Row {
	u := &r.Usage
	if name == "" {
		name = "workloads"
	}
	return &screen.Row{Key: keyOf(r), Name: name, Cells: []screen.Cell{
		screen.CPUs(u.CPUs.Gross), screen.CPUs(u.CPUs.Net), screen.CPUs(u.CPUs.Tare),
		screen.Size(u.Hard.Gross), screen.Size(u.Hard.Net), screen.Size(u.Hard.Tare),
		screen.CPUs(known.As(u.BPF.Gross, func(s float64) float64 { return s / seconds })), screen.Size(u.WorkingSet.Gross),
	}}
}

// budgetParts returns the parts of the CPU time of all machines, in seconds. What no rule names is not part of
// workloads, unlike in net.
func budgetParts(c *cluster.Cluster) []report.Part {
	s, b := &c.Total.CPU, &c.Capacity
	net := report.Part{Line: "workloads", Sign: '#', Seconds: s.NetKnown(), Unknown: s.Net == nil}
	other := report.Part{Line: "no rule names", Sign: 'i', Unknown: s.Other == nil}
	if s.Other != nil {
		other.Seconds = *s.Other
		net.Seconds -= *s.Other
	}
	return []report.Part{net,
		{Line: "infrastructure", Sign: 'B', Seconds: s.TareKnown(), Unknown: s.Tare == nil},
		other,
		{Line: "idle", Sign: '.', Seconds: b.Idle},
		{Line: "steal", Sign: 's', Seconds: b.Steal},
		{Line: "unexplained", Sign: '?', Seconds: b.Unexplained}}
}
