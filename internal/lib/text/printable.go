package text

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns s as one line that is safe to print: control characters, line separators and marks that change the
// direction of text become Go escape sequences (\x1b, \n, \u202e), because they could steer a terminal, hide part of a
// line or forge a log line. Text that needs no escape is returned unchanged.
func Line(s string) string { return escape(s, false) }

// Lines is Line for text of several lines: line feeds and tabs stay.
func Lines(s string) string { return escape(s, true) }

// ClipLine returns the first bytes of Line(s), at most most of them, and "..." where that is not all. It takes no more
// time than for as many bytes of s.
func ClipLine(s string, most int) string {
	if len(s) <= most {
		if line := Line(s); len(line) <= most {
			return line
		}
	}
	n := 0 // bytes of what is shown
	for i := 0; i < len(s); {
		_, size := utf8.DecodeRuneInString(s[i:])
		if n += len(Line(s[i : i+size])); n > most {
			return Line(s[:i]) + "..."
		}
		i += size
	}
	return Line(s)
}

func escape(s string, lines bool) string {
	at := 0
	for at < len(s) {
		r, size := utf8.DecodeRuneInString(s[at:])
		if !safe(r, size, lines) {
			break
		}
		at += size
	}
	if at == len(s) {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:at])
	for at < len(s) {
		r, size := utf8.DecodeRuneInString(s[at:])
		if safe(r, size, lines) {
			b.WriteString(s[at : at+size])
		} else {
			quoted := strconv.QuoteToASCII(s[at : at+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		at += size
	}
	return b.String()
}

// safe says whether a character of size bytes can be shown. Besides what is no character, unicode.IsGraphic leaves out
// controls and the marks that change the direction of text; unusual spaces stay, because they are harmless. A line
// separator (Zl, Zp) begins another line where it is heeded.
func safe(r rune, size int, lines bool) bool {
	switch {
	case r == '\n' || r == '\t':
		return lines
	case r == utf8.RuneError && size <= 1:
		return false
	case unicode.In(r, unicode.Zl, unicode.Zp):
		return false
	}
	return unicode.IsGraphic(r)
}

// Plain is s without control characters and what is not UTF-8.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// OfC is the text before the first zero byte, which ends a text in C, with "?" for bytes that are not UTF-8.
func OfC(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(b), "?")
}
