// Package text prepares text for messages and logs: it suggests the right name for a misspelt one (suggest.go), makes
// text from untrusted sources safe to print (printable.go, json.go), lays out tables and prose (table.go), writes JSON
// (write.go), and compiles regular expressions on first use (regexp.go).
package text

import (
	"strconv"
	"strings"
)

// Nearest returns the candidate closest to a misspelt name by edit distance, or "" when none is close.
func Nearest(name string, candidates []string) string {
	if len(name) > 64 {
		return ""
	}
	best, least := "", 1+max(1, len(name)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

// Suggest returns a hint for a misspelt name: the nearest candidate, or all of them when none is close.
func Suggest(name string, candidates []string) string {
	if n := Nearest(name, candidates); n != "" {
		return "did you mean " + n + "?"
	}
	if len(candidates) == 0 {
		return ""
	}
	return "choose one of " + strings.Join(candidates, ", ")
}

// distance returns the number of bytes to insert, delete, replace or swap with their neighbour to turn a into b
// (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			replace := last[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// DidYouMean returns the end of a message about a misspelt name: the nearest candidate, or nothing when none is close.
func DidYouMean(name string, candidates []string) string {
	if n := Nearest(Clip(name), candidates); n != "" {
		return "; did you mean " + strconv.Quote(n) + "?"
	}
	return ""
}

// Clip cuts s to 40 bytes, so that a hostile name or value cannot fill the message.
func Clip(s string) string { return ClipTo(s, 40) }

// ClipTo cuts s to the given number of bytes (most), and ends it with "..." if it was longer.
func ClipTo(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
