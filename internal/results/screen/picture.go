package screen

import (
	"cmp"
	"time"

	"tare/internal/lib/known"
	"tare/internal/lib/quantity"
	"tare/internal/results/report"
)

// Picture is what the screen shows of one window. Names in it may hold any bytes.
type Picture struct {
	Of       string    // whose window it is, such as the name of a machine
	Note     string    // what else the title says about it
	End      time.Time // of the window
	Seconds  float64   // that it lasted
	CPUs     float64
	Busy     float64       // the part of the CPU time in which something ran, 0 to 1
	Parts    []report.Part // of the CPU time, in seconds
	Capacity float64       // CPU seconds that the parts add up to
	Rows     []Rows        // of each Table, in their order
	Warnings []string
}

// Rows are what one table shows of a window.
type Rows struct {
	All    []*Row
	Unread bool // how many there are is not known
}

// Table is one tab of the screen.
type Table struct {
	Name    string
	Columns []Column                   // before the name of a row; the first is what the history shows
	Last    string                     // title of the name of a row
	None    string                     // what stands where there are no rows
	Tree    bool                       // what is below a row is a thing of the same kind
	Amount  func(value float64) string // a value of the history
}

// count is how many things the rows are.
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
	Cells int // of the terminal
	Least int // columns of a terminal from which on it is shown
}

// Row is one thing of a table, with what belongs to it.
type Row struct {
	Key   string // the same in each window; no other row of the table has it
	Name  string
	Full  string // the name where Name is a part of it; empty: the same
	Cells []Cell
	Below []*Row
	Open  bool // Below is shown unless a person folds it
}

func (r *Row) fullName() string { return cmp.Or(r.Full, r.Name) }

// first is the value that the history has.
func (r *Row) first() (v float64, is bool) {
	if len(r.Cells) == 0 {
		return 0, false
	}
	return r.Cells[0].value, r.Cells[0].known
}

// Cell is a value of a row. The zero value is one that does not apply.
type Cell struct {
	text  string
	value float64 // to sort by
	known bool
}

// unknown is a value that applies, and is not known.
var unknown = Cell{text: "-"}

// Number is a cell with a number; nil: it is not known.
func Number(v *float64, write func(float64) string) Cell {
	if v == nil {
		return unknown
	}
	return Cell{write(*v), *v, true}
}

// CPUs is a cell with a number of CPUs.
func CPUs(v *float64) Cell { return Number(v, cpus) }

// Size is a cell with a number of bytes.
func Size[N int64 | uint64 | float64](n *N) Cell {
	return Number(known.As(n, func(n N) float64 { return float64(n) }), bytesOf)
}

func word(s string) Cell { return Cell{text: shown(s, 18)} }

// InCPUs writes a number of CPUs with its unit.
func InCPUs(v float64) string { return quantity.Value(v, quantity.CPUs) }
