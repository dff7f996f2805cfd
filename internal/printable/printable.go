// Package printable keeps text that others chose, such as names of processes or what a node says, from steering the
// terminal it is printed on, or from showing as other text than it is.
package printable

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text is s with a ? for each character that is not shown as itself: controls but line feeds and tabs, marks that turn
// the direction of writing, other characters without a shape, and bytes that are no UTF-8.
func Text(s string) string { return strings.Map(shown, strings.ToValidUTF8(s, "?")) }

// Line is Text on one line.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, Text(s))
}

// Clip is Line of at most so many bytes, and "..." where there were more.
func Clip(s string, most int) string {
	if len(s) <= most {
		return Line(s)
	}
	return Line(strings.ToValidUTF8(s[:most], "")) + "..."
}

func shown(r rune) rune {
	if r == '\n' || r == '\t' || r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Zs, r) {
		return r
	}
	if unicode.Is(unicode.Zs, r) {
		return ' '
	}
	return '?'
}

// JSON is a JSON document with all its strings as Text would have them, names of fields too. What is no JSON stays none.
func JSON(data []byte) []byte {
	var b bytes.Buffer
	b.Grow(len(data))
	inside := false
	for i := 0; i < len(data); {
		c := data[i]
		switch {
		case c == '"':
			inside = !inside
		case !inside:
		case c == '\\':
			r, n := escaped(data[i:])
			if n == 0 || shown(r) == r {
				n = max(n, min(2, len(data)-i))
				b.Write(data[i : i+n])
			} else {
				b.WriteRune(shown(r))
			}
			i += n
			continue
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && n == 1 {
				r = 0 // not what a valid U+FFFD is
			}
			b.WriteRune(shown(r))
			i += n
			continue
		case c == 0x7f:
			c = '?'
		}
		b.WriteByte(c)
		i++
	}
	return b.Bytes()
}

// escaped is the character of an escape by its number at the beginning of data, and how many bytes that has; 0 of
// others.
func escaped(data []byte) (rune, int) {
	const length = 6 // \u001b
	number := func(at int) (rune, bool) {
		if len(data) < at+length || data[at] != '\\' || data[at+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(data[at+2:at+length]), 16, 16)
		return rune(n), err == nil
	}
	switch data[min(1, len(data)-1)] {
	case 'b', 'f', 'r':
		return 0, 2
	}
	first, ok := number(0)
	if !ok {
		return 0, 0
	}
	if utf16.IsSurrogate(first) {
		if second, ok := number(length); ok {
			if r := utf16.DecodeRune(first, second); r != unicode.ReplacementChar {
				return r, 2 * length
			}
		}
		return 0, length // half a character
	}
	return first, length
}
