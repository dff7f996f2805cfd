package text

import (
	"bytes"
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON returns a JSON document with a ? for each character of its strings, including names of fields, that Lines would
// escape. Invalid JSON stays invalid.
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
				r = 0 // an invalid byte, unlike a valid U+FFFD
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

// escaped returns the character of an escape sequence at the beginning of data, and the sequence's length in bytes.
// The length is 0 for sequences that are always safe.
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
		return 0, length // half of a surrogate pair
	}
	return first, length
}

// shown returns r, or ? if r is not safe to print.
func shown(r rune) rune {
	if safe(r, utf8.RuneLen(r), true) {
		return r
	}
	return '?'
}
