package screen

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
)

// wide returns the maximum number of cells of a terminal that a character takes. Terminals and fonts differ outside of
// ASCII, and a line that is wider than computed would wrap.
func wide(r rune) int {
	if r < utf8.RuneSelf {
		return 1
	}
	return 2
}

// shown escapes a name from outside and fits it into the given number of cells. It also escapes combining characters,
// since any number of them can share one cell. A name that does not fit ends in "~".
func shown(name string, cells int) string {
	if most := 8 * max(cells, 1); len(name) > most {
		name = name[:most] // more than enough: no character has more than four bytes
	}
	var b strings.Builder
	used := 0
	for _, r := range text.Line(name) {
		piece, takes := string(r), wide(r)
		if unicode.Is(unicode.M, r) || r > unicode.MaxLatin1 && unicode.IsSpace(r) {
			piece = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
			takes = len(piece)
		}
		if used += takes; used > cells {
			return clipped(b.String(), cells)
		}
		b.WriteString(piece)
	}
	return b.String()
}

// clipped cuts a text so that it fits into the given number of cells together with a "~" at its end.
func clipped(s string, cells int) string {
	used := width(s)
	for s != "" && used >= cells {
		r, size := utf8.DecodeLastRuneInString(s)
		s, used = s[:len(s)-size], used-wide(r)
	}
	if cells <= 0 {
		return ""
	}
	return s + "~"
}

// width returns the maximum number of cells that a text takes. The function shown must have escaped the text.
func width(s string) (cells int) {
	for _, r := range s {
		cells += wide(r)
	}
	return cells
}

// left and right pad a text that the function shown has escaped to a number of cells; left puts it on the left.
func left(s string, cells int) string  { return s + strings.Repeat(" ", max(cells-width(s), 0)) }
func right(s string, cells int) string { return strings.Repeat(" ", max(cells-width(s), 0)) + s }

// least is the smallest number of CPUs that is shown as a number.
const least = 0.00005

// cpus formats a number of CPUs in at most eight cells, such as 0.2500 for a quarter of one CPU.
func cpus(v float64) string {
	if v != 0 && math.Abs(v) < least {
		return "~0"
	}
	decimals := 4
	for most := 100.0; math.Abs(v) >= most && decimals > 0; most *= 10 {
		decimals--
	}
	if v == 0 {
		decimals = 0
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

func percent(part float64) string { return strconv.FormatFloat(100*part, 'f', 1, 64) + " %" }

func bytesOf(v float64) string { return quantity.Value(v, quantity.Bytes) }
