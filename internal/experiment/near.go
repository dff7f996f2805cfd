package experiment

import (
	"fmt"
	"strings"
)

// Nearest is the candidate that text most likely meant, by edit distance; "" when none is near.
func Nearest(text string, candidates []string) string {
	text = strings.ToLower(clip(text))
	best, least := "", 1+max(1, len(text)/3)
	for _, c := range candidates {
		if d := distance(text, strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

func didYouMean(text string, candidates []string) string {
	if near := Nearest(text, candidates); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// distance is the number of letters to insert, delete, replace or swap with their neighbour (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := 1
			if a[i-1] == b[j-1] {
				replace = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
