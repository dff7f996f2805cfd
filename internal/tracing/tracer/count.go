package tracer

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"tare/internal/lib/text"
)

// matcher is a pattern for lines.
type matcher struct {
	all bool // every line matches without a look at re: a storm has tens of thousands of lines per second
	re  *regexp.Regexp
}

// compile compiles a pattern in the syntax of package regexp. Its error continues a sentence that begins with the
// pattern's name.
func compile(pattern string) (*matcher, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("is not a regular expression: %w", err)
	}
	return &matcher{slices.Contains([]string{"", ".*", "^", "$", "^.*", ".*$", "^.*$"}, pattern), re}, nil
}

func (m *matcher) match(line []byte) bool { return m.all || m.re.Match(line) }

// captured returns the text that the first group of the pattern captures, or "" if the line does not match.
func (m *matcher) captured(line []byte) string {
	found := m.re.FindSubmatch(line)
	if len(found) < 2 {
		return ""
	}
	return string(found[1])
}

// tally is the count of one source, as far as its stream has been read.
type tally struct {
	source  Source
	n       int64
	seen    bool  // the source has reported a value, so n is known; always true for lines
	updates int64 // how often the source has reported a value

	// doubt is the reason why n cannot be trusted, for example a total that fell because the tracer was restarted. It is
	// empty if n can be trusted.
	doubt string
}

func newTally(s Source) *tally { return &tally{source: s, seen: s.Lines != nil} }

// take counts the events that one line reports, if any.
func (t *tally) take(line []byte) {
	switch {
	case t.source.Lines != nil:
		if t.source.Lines.match(line) {
			t.n++
		}
	case t.source.Sum != nil:
		said := t.source.Sum.captured(line)
		if said == "" {
			return
		}
		n, err := strconv.ParseInt(said, 10, 64)
		if t.seen, t.updates = true, t.updates+1; err != nil || n < 0 || t.n+n < 0 {
			t.doubt = fmt.Sprintf("it wrote %q, which is not a count", text.ClipTo(said, 40))
			return
		}
		t.n += n
	case t.source.JSON != nil:
		if n, ok := lookUp(line, t.source.JSON); ok {
			t.total(n)
		}
	}
}

// total sets a running total. If the total falls, the tracer has probably been restarted and counts from 0 again, so
// total records that the count cannot be trusted.
func (t *tally) total(n int64) {
	if n < t.n {
		t.doubt = fmt.Sprintf("its total fell from %d to %d, as when a tracer is started again", t.n, n)
	}
	t.n, t.seen, t.updates = n, true, t.updates+1
}

// maxLine is the number of bytes of a line that are processed. A tracer that never ends its line must not fill the
// memory.
const maxLine = 64 << 10

// feed processes one stream. It stores at most one line of the stream.
type feed struct {
	tallies []*tally
	watch   func(line []byte) // called for every line, unless it is nil

	lines int64  // number of complete lines
	carry []byte // the beginning of an incomplete line
	over  bool   // the current line is longer than maxLine
}

// write processes the next piece of the stream. A nil piece means that the stream has ended.
func (f *feed) write(piece []byte) {
	if f.watch == nil && f.plain() {
		n := int64(bytes.Count(piece, newline))
		f.lines += n
		for _, t := range f.tallies {
			t.n += n
		}
		return
	}
	if piece == nil && !f.over && len(f.carry) > 0 { // end without a newline: a total in the last line is complete
		for _, t := range f.tallies {
			if t.source.JSON != nil {
				t.take(f.carry)
			}
		}
		f.carry = f.carry[:0]
	}
	for len(piece) > 0 {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			f.keep(piece)
			return
		}
		line := piece[:end]
		if len(f.carry) > 0 || f.over {
			f.keep(line)
			line = f.carry
		} else if len(line) > maxLine {
			line = line[:maxLine]
		}
		f.line(line)
		f.carry, f.over = f.carry[:0], false
		piece = piece[end+1:]
	}
}

var newline = []byte{'\n'}

// plain reports whether it is enough to count lines.
func (f *feed) plain() bool {
	return !slices.ContainsFunc(f.tallies, func(t *tally) bool { return t.source.Lines == nil || !t.source.Lines.all })
}

// keep stores a part of a line, up to maxLine.
func (f *feed) keep(part []byte) {
	room := maxLine - len(f.carry)
	if len(part) > room {
		part, f.over = part[:room], true
	}
	f.carry = append(f.carry, part...)
}

func (f *feed) line(line []byte) {
	f.lines++
	for _, t := range f.tallies {
		t.take(line)
	}
	if f.watch != nil {
		f.watch(line)
	}
}
