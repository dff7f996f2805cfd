package screen

import (
	"math"
	"time"
)

// kept is the maximum age of a tick in the history.
const kept = 10 * time.Minute

// mostPoints bounds the number of values in the history of all rows, at 4 bytes each. With more rows, the history
// covers less time.
const mostPoints = 2 << 20

// history holds the use of rows in past ticks.
type history struct {
	ends []time.Time          // of past ticks, the oldest first
	rows map[string][]float32 // the latest values of each row, in the order of ends; NaN: unknown
}

// add appends a tick with the use of each row. Rows without an entry in the map used get an unknown value.
func (h *history) add(end time.Time, used map[string]float64) {
	h.ends = append(h.ends, end)
	drop := 0
	for drop < len(h.ends)-1 && (end.Sub(h.ends[drop]) > kept || len(h.ends)-drop > h.most(len(used))) {
		drop++
	}
	h.ends = append(h.ends[:0], h.ends[drop:]...)
	if h.rows == nil {
		h.rows = map[string][]float32{}
	}
	for key, values := range h.rows {
		v, there := used[key]
		if !there {
			v = math.NaN()
		}
		values = append(values, point(v))
		if over := len(values) - len(h.ends); over > 0 {
			values = append(values[:0], values[over:]...)
		}
		if h.rows[key] = values; !there && forgotten(values) {
			delete(h.rows, key)
		}
	}
	for key, v := range used {
		if h.rows[key] == nil {
			h.rows[key] = []float32{point(v)}
		}
	}
}

// point converts a value for the history. Values that no machine can have become unknown.
func point(v float64) float32 {
	if math.Abs(v) > math.MaxFloat32 {
		return float32(math.NaN())
	}
	return float32(v)
}

// most returns how many ticks are kept for a number of rows.
func (h *history) most(rows int) int { return max(mostPoints/max(rows, len(h.rows), 1), 1) }

// forgotten reports whether all kept values of a row are unknown.
func forgotten(values []float32) bool {
	for _, v := range values {
		if v == v {
			return false
		}
	}
	return true
}

// of returns the values of a row, one for each kept tick; NaN if unknown.
func (h *history) of(key string) []float64 {
	all := make([]float64, len(h.ends))
	values := h.rows[key]
	for i := range all {
		all[i] = math.NaN()
		if at := i - (len(all) - len(values)); at >= 0 {
			all[i] = float64(values[at])
		}
	}
	return all
}

// span returns the time that the history covers, from the end of its first tick.
func (h *history) span() time.Duration {
	if len(h.ends) == 0 {
		return 0
	}
	return h.ends[len(h.ends)-1].Sub(h.ends[0])
}

// blocks draw eighths of the height of a line.
var blocks = []rune("▁▂▃▄▅▆▇█")

// sparkline draws values on a scale from 0 to the given maximum, the newest last, in at most the given number of cells.
// A cell shows the largest of its values, and is blank if none is known.
func sparkline(values []float64, most float64, cells int) string {
	if cells <= 0 {
		return ""
	}
	each := max((len(values)+cells-1)/cells, 1) // number of values in a cell
	values = values[len(values)%each:]
	line := make([]rune, 0, cells)
	for i := 0; i+each <= len(values); i += each {
		largest := math.NaN()
		for _, v := range values[i : i+each] {
			if v == v && !(v <= largest) {
				largest = v
			}
		}
		switch {
		case largest != largest:
			line = append(line, ' ')
		case most <= 0:
			line = append(line, blocks[0])
		default:
			level := math.Round(largest / most * float64(len(blocks)-1))
			line = append(line, blocks[int(min(max(level, 0), float64(len(blocks)-1)))])
		}
	}
	return string(line)
}

// peak returns the largest known value; 0 if there is none.
func peak(values []float64) (most float64) {
	for _, v := range values {
		if v > most {
			most = v
		}
	}
	return most
}
