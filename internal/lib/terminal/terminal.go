// Package terminal writes to terminals text that contains untrusted parts. A record, a node or a weighed process must
// not be able to control the terminal or to hide what the text says.
package terminal

import (
	"io"
	"strings"
	"unicode/utf8"

	"tare/internal/lib/text"
)

// Styles are the control sequences that Tare itself writes to standard output: bold, faint, and the end of both.
var Styles = []string{"\x1b[1m", "\x1b[2m", "\x1b[0m"}

// Guard returns a writer to a terminal that escapes all control characters except line feeds, tabs and the sequences
// in own.
func Guard(w io.Writer, own ...string) io.Writer { return &guarded{w: w, own: own} }

// guarded implements Guard.
type guarded struct {
	w    io.Writer
	own  []string
	rest string // an incomplete character, or sequence of own, at the end of the last write
}

func (g *guarded) Write(p []byte) (int, error) {
	text := g.rest + string(p)
	whole := len(text) - g.begun(text)
	text, g.rest = text[:whole], text[whole:]
	if _, err := io.WriteString(g.w, safe(text, g.own)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// begun returns how many bytes at the end of text may be the beginning of a character or of a sequence of own.
func (g *guarded) begun(text string) int {
	for n := min(len(text), utf8.UTFMax-1); n > 0; n-- {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRuneInString(tail) {
				return n
			}
			break
		}
	}
	for _, control := range g.own {
		for n := len(control) - 1; n > 0; n-- {
			if strings.HasSuffix(text, control[:n]) {
				return n
			}
		}
	}
	return 0
}

// safe escapes all control characters in a text except line feeds, tabs and the sequences in own.
func safe(raw string, own []string) string {
	for _, control := range own {
		if before, after, found := strings.Cut(raw, control); found {
			return safe(before, own) + control + safe(after, own)
		}
	}
	return text.Lines(raw)
}
