// Package lines checks the length of lines in the files that golangci-lint does not read: Markdown, YAML, C and
// TypeScript. Tests that generate pages wrap their text with it.
package lines

import (
	"strings"
	"unicode/utf8"
)

// Columns is how long a line may be, in characters; a tab counts as one.
const Columns = 120

// Wrap returns text in lines of at most Columns columns, in which all but the first begin with indent. It ends with a
// line feed.
func Wrap(text, indent string) string {
	var b strings.Builder
	columns := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i > 0 && columns+1+n > Columns:
			b.WriteString("\n" + indent)
			columns = len(indent)
		case i > 0:
			b.WriteString(" ")
			columns++
		}
		b.WriteString(word)
		columns += n
	}
	return b.String() + "\n"
}
