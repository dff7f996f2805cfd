// Package clusterreport writes the account of a cluster for people and programs: a sentence that says what
// infrastructure costs, then tables in which gross = net + tare. Each format is a file that registers itself.
//
// Names come from the cluster, where any user may choose them: whatever they hold, they stay in their row.
package clusterreport

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/lists"
)

// Options are what people see. JSON and CSV have everything.
type Options struct {
	By  string // a view of cluster.Views; empty: workload
	Top int    // rows of a table, the biggest first; the others are in a row "other". 0: 20, below 0: all
}

// view is the one that tables show.
func (o Options) view() string { return cmp.Or(o.By, "workload") }

// rows is how many of n rows a table has.
func (o Options) rows(n int) int {
	if o.Top < 0 {
		return n
	}
	return min(n, cmp.Or(o.Top, 20))
}

// Format is one form of the account.
type Format struct {
	Name  string // of -o
	Help  string // what it is, or what reads it, in a line
	Write func(io.Writer, *cluster.Cluster, Options) error
}

// formats are the registry, in the order of their names.
var formats []Format

// register adds a format. It is called from init functions only.
func register(f Format) {
	formats = append(formats, f)
	slices.SortFunc(formats, func(a, b Format) int { return strings.Compare(a.Name, b.Name) })
}

// Formats are all of them.
func Formats() []Format { return slices.Clone(formats) }

// Names are what formats are called.
func Names() []string { return lists.Map(formats, func(f Format) string { return f.Name }) }
