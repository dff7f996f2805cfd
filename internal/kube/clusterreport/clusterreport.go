// Package clusterreport writes the account of a cluster for people and programs: a sentence that says what
// infrastructure costs, then tables in which gross = net + tare. Each format is a file that registers itself.
//
// Names come from the cluster, where any user may choose them: whatever they hold, they stay in their row.
package clusterreport

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"tare/internal/kube/cluster"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
)

// Options are what people see. JSON and CSV have everything.
type Options struct {
	By    string // a view of cluster.Views; empty: workload
	Top   int    // rows of a table, the biggest first; the others are in a row "other". 0: 20, below 0: all
	Width int    // columns of text; 0: 80
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
	Name  string // of --format
	Help  string // what it is, or what reads it, in a line
	Write func(io.Writer, *cluster.Cluster, Options) error
}

// formats are the registry, in the order of their names.
var formats []Format

// register adds a format. It is called from init functions only.
func register(f Format) {
	at, taken := slices.BinarySearchFunc(formats, f.Name, func(f Format, name string) int {
		return strings.Compare(f.Name, name)
	})
	if taken {
		panic("clusterreport: two formats " + f.Name)
	}
	formats = slices.Insert(formats, at, f)
}

// Formats are all of them.
func Formats() []Format { return slices.Clone(formats) }

// Write writes the account in the format of a name.
func Write(w io.Writer, format string, c *cluster.Cluster, o Options) error {
	if !slices.Contains(cluster.Views(), o.view()) {
		return fault.New(fault.Usage, "--by "+text.Clip(o.By), "choose from "+strings.Join(cluster.Views(), ", "),
			"no such view%s", text.DidYouMean(o.By, cluster.Views()))
	}
	names := lists.Map(formats, func(f Format) string { return f.Name })
	at := slices.Index(names, format)
	if at < 0 {
		return fault.New(fault.Usage, "--format "+text.Clip(format), "choose from "+strings.Join(names, ", "),
			"no such format%s", text.DidYouMean(format, names))
	}
	return formats[at].Write(w, c, o)
}

// put writes a document at once.
func put(w io.Writer, document string) error {
	if _, err := io.WriteString(w, document); err != nil {
		return fmt.Errorf("writing the account of the cluster: %w", err)
	}
	return nil
}
