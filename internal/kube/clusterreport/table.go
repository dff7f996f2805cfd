package clusterreport

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
)

// column is a figure in tables for people.
type column struct {
	head string
	of   func(*cluster.Usage) string
}

// cell formats a figure for a table. "~" marks a figure of which a part is unknown, "-" one that is unknown
// altogether.
func cell(v *float64, known float64, number func(float64) string) string {
	switch {
	case v != nil:
		return number(*v)
	case known != 0:
		return "~" + number(known)
	}
	return "-"
}

// cellNote explains the mark "~".
const cellNote = "~: a part is not known, such as that of a container that ended meanwhile."

func inCPUs(v float64) string {
	switch {
	case v >= 99.9995:
		return fixed(v, 1)
	case v > 0 && v < 0.0005:
		return "<0.001" // and not 0, which is nothing
	}
	return fixed(v, 3)
}

func inBytes(v float64) string { return quantity.Value(v, quantity.Bytes) }

func gross(s cluster.Split, number func(float64) string) string {
	return cell(s.Gross, s.GrossKnown(), number)
}
func net(s cluster.Split, number func(float64) string) string {
	return cell(s.Net, s.NetKnown(), number)
}
func tare(s cluster.Split, number func(float64) string) string {
	return cell(s.Tare, s.TareKnown(), number)
}

// columns are the columns of tables in a terminal. everyColumn adds those for pages and Markdown.
var (
	columns = []column{
		{"CPUs", func(u *cluster.Usage) string { return gross(u.CPUs, inCPUs) }},
		{"net", func(u *cluster.Usage) string { return net(u.CPUs, inCPUs) }},
		{"tare", func(u *cluster.Usage) string { return tare(u.CPUs, inCPUs) }},
		{"hard mem.", func(u *cluster.Usage) string { return gross(u.Hard, inBytes) }},
		{"net", func(u *cluster.Usage) string { return net(u.Hard, inBytes) }},
		{"tare", func(u *cluster.Usage) string { return tare(u.Hard, inBytes) }},
	}
	everyColumn = slices.Concat(columns, []column{
		{"eBPF s", func(u *cluster.Usage) string { return gross(u.BPF, inCPUs) }},
		{"soft mem.", func(u *cluster.Usage) string { return gross(u.Soft, inBytes) }},
		{"working set", func(u *cluster.Usage) string { return gross(u.WorkingSet, inBytes) }},
	})
)

// title returns the title of a row, which may hold any bytes.
func title(view string, r *cluster.Row) string {
	join := func(parts ...string) string {
		return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "/")
	}
	switch view {
	case "workload":
		switch {
		case r.Component == "node" && r.Namespace == "":
			return "(node) other services"
		case r.Component != "" && r.Namespace == "":
			return "(node) " + r.Component
		case r.Component != "":
			return join(r.Namespace, r.Component) + " (shared)"
		case r.Namespace == r.Workload:
			return r.Workload
		}
		return join(r.Namespace, r.Workload)
	case "container":
		part := cmp.Or(r.Container, r.Component)
		if part == cluster.Application {
			part = "(in no container)"
		}
		name := join(r.Namespace, cmp.Or(r.Pod, r.Workload), part)
		return name + " on " + r.Node
	}
	return cmp.Or(r.Namespace, r.Component, r.Node)
}

// titles returns the titles of the rows of a view. Workloads of one name, such as a Deployment and a StatefulSet, have
// their kinds in addition.
func titles(view string, rows []*cluster.Row) []string {
	all := lists.Map(rows, func(r *cluster.Row) string { return title(view, r) })
	count := map[string]int{}
	for _, name := range all {
		count[name]++
	}
	for i, r := range rows {
		if count[all[i]] > 1 && r.Kind != "" {
			all[i] += " (" + r.Kind + ")"
		}
	}
	return all
}

// viewTable returns the table of a view: a header, then a name and figures for each row. The biggest rows come first,
// one row sums up the rows beyond the limit, and the last row is the total.
func viewTable(c *cluster.Cluster, o Options, figures []column) (table [][]string) {
	view := o.view()
	row := func(name string, cell func(column) string) {
		table = append(table, append([]string{name}, lists.Map(figures, cell)...))
	}
	row(view, func(f column) string { return f.head })
	add := func(name string, u *cluster.Usage) { row(name, func(f column) string { return f.of(u) }) }
	rows := c.By(view)
	n := o.rows(len(rows))
	if len(rows) == n+1 {
		n++
	}
	names := titles(view, rows)
	for i, r := range rows[:n] {
		add(names[i], &r.Usage)
	}
	if left := rows[n:]; len(left) > 0 {
		add("other ("+quantity.Counted(len(left), view)+")", new(cluster.Sum(left)))
	}
	add("total", &c.Total)
	return table
}

// fit makes a name safe to print (text.Clean), and cuts it in the middle if it has more characters than width.
func fit(s string, width int) string {
	r := []rune(text.Clean(s))
	if len(r) <= width || width < 5 {
		return string(r)
	}
	tail := (width - 3) / 2
	return string(r[:width-3-tail]) + "..." + string(r[len(r)-tail:])
}

// reserveTable compares what nodes reserve with what their daemons used. left is the number of nodes beyond the limit
// of rows.
func reserveTable(c *cluster.Cluster, o Options) (rows [][]string, left int) {
	rows = [][]string{{"node", "CPUs reserved", "used", "to set", "memory reserved", "used", "to set"}}
	for i := range c.Nodes {
		r := c.Nodes[i].Reserve
		if r == nil || r.Used == (cluster.Resources{}) {
			continue // a warning, or the remark about shared machines, gives the reason
		}
		if len(rows) > o.rows(len(c.Nodes)) {
			left++
			continue
		}
		cpus := func(v *float64) string { return cell(v, 0, inCPUs) }
		bytes := func(n *int64) string {
			return cell(known.As(n, func(n int64) float64 { return float64(n) }), 0, inBytes)
		}
		rows = append(rows, []string{c.Nodes[i].Name, cpus(r.Reserved.CPUs), cpus(r.Used.CPUs), cpus(r.Suggested.CPUs),
			bytes(r.Reserved.MemoryBytes), bytes(r.Used.MemoryBytes), bytes(r.Suggested.MemoryBytes)})
	}
	return rows, left
}

const reserveTitle = "Reserved for the nodes themselves"

// reserveNote explains the columns.
var reserveNote = fmt.Sprintf("Reserved is capacity less allocatable. Used is what serves the node and is in no pod: "+
	"CPUs, and the working set of memory. To set: used times %v for CPUs and times %v for memory, rounded up. One "+
	"window shows no peak: weigh under load before setting it.", cluster.HeadroomCPU, cluster.HeadroomMemory)

// remarks returns what a reader must know about the account: machines that nodes share, nodes that did not answer, and
// warnings.
func remarks(c *cluster.Cluster) (all [][2]string) {
	for i := range c.Machines {
		m := &c.Machines[i]
		all = append(all, [2]string{"note", fmt.Sprintf("%s share one machine, which is counted once; what runs on it "+
			"outside of pods has a separate row among the nodes, and is in no node's reserve", some(m.Nodes, len(m.Nodes)))})
	}
	switch share := 100 * c.Capacity.Unexplained / max(c.Capacity.Capacity, 1e-9); {
	case c.Answered == 0:
	case share < 0:
		all = append(all, [2]string{"note", fmt.Sprintf("control groups, kernel threads and interrupts have %.2f %% of the "+
			"capacity more than was used: these counters are not read at one moment", -share)})
	default:
		all = append(all, [2]string{"note", fmt.Sprintf("%.2f %% of the capacity is unexplained: no control group, "+
			"kernel thread or interrupt that agents see has it", share)})
	}
	if names := negative(c); len(names) > 0 {
		all = append(all, [2]string{"note", fmt.Sprintf("what is less than 0 (%s) is no usage: counters of a group and of "+
			"the groups in it are not read at one moment, and the difference keeps sums right", some(names, len(names)))})
	}
	for _, f := range Failures(c) {
		all = append(all, [2]string{"no answer", f})
	}
	var nodes []string
	for _, w := range c.Warnings {
		if code, of := strings.CutPrefix(w.Code, "node-"); of {
			nodes = append(nodes, fit(code, maxShown)+" ("+some(w.About, w.Count)+")")
			continue
		}
		message := fit(w.Message, 6*maxShown)
		if len(w.About) > 0 {
			message += " (" + some(w.About, w.Count) + ")"
		}
		all = append(all, [2]string{"warning", message + " [" + fit(w.Code, maxShown) + "]"})
	}
	if len(nodes) > 0 {
		all = append(all, [2]string{"warning", "of the ledgers of nodes, see docs/troubleshooting.md: " +
			strings.Join(nodes[:min(len(nodes), maxCodes)], "; ")})
	}
	return all
}

// negative returns the titles of rows that tables show with a figure less than 0.
func negative(c *cluster.Cluster) (named []string) {
	for _, view := range []string{"component", "workload", "container"} {
		rows := c.By(view)
		names := titles(view, rows)
		for i, r := range rows {
			const shown = -0.0005 // CPUs
			cpus, memory := min(r.CPUs.NetKnown(), r.CPUs.TareKnown()), 0.0
			for _, s := range []cluster.Split{r.Hard, r.Soft, r.WorkingSet} {
				memory = min(memory, s.NetKnown(), s.TareKnown())
			}
			if cpus <= shown || memory < 0 {
				named = lists.Include(named, names[i])
			}
		}
	}
	return named
}

// Failures returns the reasons why nodes gave no window, each with the nodes that share it.
func Failures(c *cluster.Cluster) []string {
	var nodes lists.Groups[string, string]
	for i := range c.Nodes {
		if n := &c.Nodes[i]; n.Failed != "" {
			nodes.Add(n.Failed, n.Name)
		}
	}
	var all []string
	for why, of := range nodes.All() {
		all = append(all, some(of, len(of))+": "+fit(why, maxReason))
	}
	return all
}

// maxReason is the longest reason for a failure, in characters.
const maxReason = 400

// maxCodes limits how many warning codes of nodes are named.
const maxCodes = 10

// maxShown is the longest name in prose, in characters.
const maxShown = 48

// some names the first few of n things.
func some(names []string, n int) string {
	const most = 4
	shown := lists.Map(names[:min(len(names), most)], func(s string) string { return fit(s, maxShown) })
	first := strings.Join(shown, ", ")
	if left := n - len(shown); left > 0 {
		first += fmt.Sprintf(" and %d more", left)
	}
	return first
}
