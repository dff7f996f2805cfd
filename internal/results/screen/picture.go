package screen

import (
	"cmp"
	"time"

	"tare/internal/lib/known"
	"tare/internal/lib/quantity"
	"tare/internal/results/report"
)

// Picture holds what the screen shows of one window. Names in it may contain any bytes.
type Picture struct {
	Of       string    // where the window was measured, such as the name of a machine
	Note     string    // further text for the title
	End      time.Time // of the window
	Seconds  float64   // length of the window
	CPUs     float64
	Busy     float64       // fraction of the CPU time in which something ran, 0 to 1
	Parts    []report.Part // of the CPU time, in seconds
	Capacity float64       // CPU seconds that the parts add up to
	Rows     []Rows        // one for each Table, in their order
	Warnings []string
}

// Rows are the rows of one table in a window.
type Rows struct {
	All    []*Row
	Unread bool // the number of rows is unknown
}

// Table is one tab of the screen.
type Table struct {
	Name    string
	Columns []Column                   // before the name of a row; the history shows the first
	Last    string                     // title of the column of names
	None    string                     // text if there are no rows
	Tree    bool                       // the rows below a row are things of the same kind, and are counted as well
	Amount  func(value float64) string // formats a value of the history
}

// count returns the number of things in rows.
func (t *Table) count(rows []*Row) (n int) {
	for _, r := range rows {
		if n++; t.Tree {
			n += t.count(r.Below)
		}
	}
	return n
}

// Column is a column of numbers or short words.
type Column struct {
	Title string
	Cells int // width in cells
	Least int // minimum width of the terminal to show the column
}

// Row is one thing of a table, with the rows that belong to it.
type Row struct {
	Key   string // unique in the table, and the same in each window
	Name  string
	Full  string // the full name if Name is a part of it; empty: Name
	Cells []Cell
	Below []*Row
	Open  bool // Below is shown unless the user folds it
}

func (r *Row) fullName() string { return cmp.Or(r.Full, r.Name) }

// first returns the value for the history, and whether it is known.
func (r *Row) first() (v float64, is bool) {
	if len(r.Cells) == 0 {
		return 0, false
	}
	return r.Cells[0].value, r.Cells[0].known
}

// Cell is a value of a row. The zero value is a value that does not apply.
type Cell struct {
	text  string
	value float64 // to sort by
	known bool
}

// unknown is a value that applies, but is not known.
var unknown = Cell{text: "-"}

// Number returns a cell with a number; nil is an unknown one.
func Number(v *float64, write func(float64) string) Cell {
	if v == nil {
		return unknown
	}
	return Cell{write(*v), *v, true}
}

// CPUs returns a cell with a number of CPUs.
func CPUs(v *float64) Cell { return Number(v, cpus) }

// Size returns a cell with a number of bytes.
func Size[N int64 | uint64 | float64](n *N) Cell {
	return Number(known.As(n, func(n N) float64 { return float64(n) }), bytesOf)
}

func word(s string) Cell { return Cell{text: shown(s, 18)} }

// InCPUs formats a number of CPUs with its unit.
func InCPUs(v float64) string { return quantity.Value(v, quantity.CPUs) }
