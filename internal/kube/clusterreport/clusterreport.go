// Package clusterreport writes the account of a cluster for people and programs: sentences about what infrastructure
// costs, then tables in which gross = net + tare. Each format is a file that registers itself.
//
// Names come from the cluster, where any user may choose them. No name can break out of its row.
package clusterreport

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/lists"
)

// Options configure reports. JSON always has everything, and CSV has all rows of its views.
type Options struct {
	By  string // a view of cluster.Views; empty: workload, and all in CSV
	Top int    // rows of a table, the biggest first, the rest in a row "other"; 0 means 20, and less than 0 all
	// Width is the number of columns of the terminal, to which text cuts names. If it is 0, names are whole.
	Width int
}

// view returns the view that tables show.
func (o Options) view() string { return cmp.Or(o.By, "workload") }

// rows returns how many of n rows a table has.
func (o Options) rows(n int) int {
	if o.Top < 0 {
		return n
	}
	return min(n, cmp.Or(o.Top, 20))
}

// Format is one format of the account.
type Format struct {
	Name  string // value of the flag -o
	Help  string // one line: what it is, or what reads it
	Write func(io.Writer, *cluster.Cluster, Options) error
}

// formats is the registry, sorted by name.
var formats []Format

// register adds a format. It is called from init functions only.
func register(f Format) {
	formats = append(formats, f)
	slices.SortFunc(formats, func(a, b Format) int { return strings.Compare(a.Name, b.Name) })
}

// Formats returns all formats.
func Formats() []Format { return slices.Clone(formats) }

// Names returns the names of all formats.
func Names() []string { return lists.Map(formats, func(f Format) string { return f.Name }) }
