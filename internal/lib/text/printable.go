package text

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns s as one line that is safe to print. Control characters, line separators and marks that change the
// direction of text become Go escape sequences (\x1b, \n, \u202e), because they could control a terminal, hide part of
// a line or forge a log line. Text without such characters is returned unchanged.
func Line(s string) string { return escape(s, false) }

// Lines is like Line for text of several lines: it keeps line feeds and tabs.
func Lines(s string) string { return escape(s, true) }

// ClipLine returns Line(s), cut to the given number of bytes (most) and followed by "..." if it is longer. Its time
// depends on most and not on the length of s.
func ClipLine(s string, most int) string {
	if len(s) <= most {
		if line := Line(s); len(line) <= most {
			return line
		}
	}
	n := 0 // bytes of output
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

// safe reports whether a character of size bytes can be printed. unicode.IsGraphic excludes invalid characters,
// control characters and marks that change the direction of text; unusual spaces are harmless. Line separators (Zl,
// Zp) are excluded because some programs treat them as line feeds.
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

// Plain returns s without ASCII control characters, including line feeds and tabs, and without invalid UTF-8 and
// U+FFFD, which often stands for it.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// OfC returns the text before the first zero byte, as in C, with "?" for invalid UTF-8.
func OfC(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(b), "?")
}
