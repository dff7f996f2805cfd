package report

import (
	"cmp"
	"io"
	"iter"
	"slices"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/results/plan"
	"tare/internal/scale/ledger"
)

// Format is an output format, such as CSV. Each format has its own source file, which registers it. A format has a
// function for each kind of document; the functions for documents that it cannot write are nil.
type Format struct {
	Name string // as in --format
	Help string // one line: a description, or what reads it

	Run        Writer[*Run]
	Comparison Writer[*comparison.Comparison]
	History    Writer[*comparison.Course]
	Power      Writer[*analysis.Power]
	Plan       Writer[*plan.Plan]
	Ledger     Writer[*ledger.Ledger]
	// Series writes the ledgers of one machine as they arrive. Each ledger is written in full without waiting for the
	// next.
	Series Writer[iter.Seq[*ledger.Ledger]]
}

// Writer writes a document.
type Writer[D any] func(io.Writer, D, Options) error

// Run holds a run for reports.
type Run struct {
	Summary *analysis.Summary
	Record  record.Run
	Trials  []record.Trial
}

// formats is the registry, sorted by name.
var formats []Format

// register adds a format. It is called from init functions only, and panics if the name is taken or the format writes
// nothing.
func register(f Format) {
	at, taken := slices.BinarySearchFunc(formats, f.Name, func(f Format, name string) int {
		return cmp.Compare(f.Name, name)
	})
	if taken || f.Name == "" || f.Help == "" ||
		f.Run == nil && f.Comparison == nil && f.History == nil && f.Power == nil && f.Plan == nil &&
			f.Ledger == nil && f.Series == nil {
		panic("report: cannot register the format " + f.Name)
	}
	formats = slices.Insert(formats, at, f)
}

// Document is a kind of document.
type Document[D any] struct {
	name string // in the plural
	of   func(Format) Writer[D]
}

// The kinds of documents.
var (
	Runs        = Document[*Run]{"runs", func(f Format) Writer[*Run] { return f.Run }}
	Comparisons = Document[*comparison.Comparison]{"comparisons",
		func(f Format) Writer[*comparison.Comparison] { return f.Comparison }}
	Histories = Document[*comparison.Course]{"histories",
		func(f Format) Writer[*comparison.Course] { return f.History }}
	Powers  = Document[*analysis.Power]{"powers", func(f Format) Writer[*analysis.Power] { return f.Power }}
	Plans   = Document[*plan.Plan]{"plans", func(f Format) Writer[*plan.Plan] { return f.Plan }}
	Ledgers = Document[*ledger.Ledger]{"ledgers", func(f Format) Writer[*ledger.Ledger] { return f.Ledger }}
	Series  = Document[iter.Seq[*ledger.Ledger]]{"series of ledgers",
		func(f Format) Writer[iter.Seq[*ledger.Ledger]] { return f.Series }}
)

// Formats returns the formats that can write this kind of document.
func (d Document[D]) Formats() []Format {
	return slices.DeleteFunc(slices.Clone(formats), func(f Format) bool { return d.of(f) == nil })
}

// Names returns the names of Formats.
func (d Document[D]) Names() []string {
	return lists.Map(d.Formats(), func(f Format) string { return f.Name })
}

// Writer returns the function that writes this kind of document in the named format.
func (d Document[D]) Writer(name string) (Writer[D], error) {
	names := d.Names()
	for _, f := range formats {
		if f.Name != name {
			continue
		}
		if write := d.of(f); write != nil {
			return write, nil
		}
		return nil, fault.New(fault.Usage, "--format "+name, "choose from "+strings.Join(names, ", "),
			"this format has no %s", d.name)
	}
	return nil, fault.New(fault.Usage, "--format "+text.Clip(name), "choose from "+strings.Join(names, ", "),
		"no such format%s", text.DidYouMean(name, names))
}
