package charge

import (
	"strings"

	"tare/internal/scale/ledger"
)

// Patterns: * matches any characters, ? one character; in the path of a group neither matches a slash, and ** as a
// path component matches any number of components. A backslash before *, ?, a comma or a backslash makes it literal;
// elsewhere a backslash is itself literal, as in names that systemd makes (dev-disk\x2dby).

// Within reports whether a pattern matches a group's path or that of a group above it.
func Within(pattern, path string) (within bool) {
	ledger.Ancestors(path, func(above string) { within = within || matchPath(pattern, above) })
	return within
}

// matchPath reports whether a group's path matches a pattern.
func matchPath(pattern, path string) bool {
	want, have := parts(pattern), parts(path)
	// Whenever what follows the last ** does not match, that ** takes one more component. Earlier ones need not be
	// retried.
	w, h, star, from := 0, 0, -1, 0
	for h < len(have) {
		switch {
		case w < len(want) && want[w] == "**":
			star, from = w, h
			w++
		case w < len(want) && matchName(want[w], have[h]):
			w, h = w+1, h+1
		case star >= 0:
			from++
			w, h = star+1, from
		default:
			return false
		}
	}
	for w < len(want) && want[w] == "**" {
		w++
	}
	return w == len(want)
}

// parts returns the components of a path; the root has none.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// matchProgram reports whether a pattern matches the name of a program, or the 15 bytes of it that the kernel keeps.
func matchProgram(pattern, name string) bool {
	return matchName(pattern, name) || len(name) > kernelName && matchName(pattern, name[:kernelName])
}

// matchName reports whether a name matches a pattern, byte by byte.
func matchName(pattern, name string) bool {
	p, n, star, from := 0, 0, -1, 0
	for n < len(name) {
		c, literal, next := at(pattern, p)
		switch {
		case p < len(pattern) && !literal && c == '*':
			star, from = next, n
			p = next
		case p < len(pattern) && (!literal && c == '?' || c == name[n]):
			p, n = next, n+1
		case star >= 0:
			from++
			p, n = star, from
		default:
			return false
		}
	}
	for p < len(pattern) {
		c, literal, next := at(pattern, p)
		if literal || c != '*' {
			return false
		}
		p = next
	}
	return true
}

// at returns the byte of a pattern at i, whether it is literal, and the index of the next one.
func at(pattern string, i int) (c byte, literal bool, next int) {
	if i >= len(pattern) {
		return 0, false, i
	}
	if pattern[i] == '\\' && i+1 < len(pattern) && strings.IndexByte(`*?,\`, pattern[i+1]) >= 0 {
		return pattern[i+1], true, i + 2
	}
	return pattern[i], pattern[i] != '*' && pattern[i] != '?', i + 1
}

// literals returns the minimum length in bytes of a name that matches a pattern.
func literals(pattern string) (n int) {
	for i := 0; i < len(pattern); {
		c, literal, next := at(pattern, i)
		if literal || c == '?' {
			n++
		}
		i = next
	}
	return n
}

// escaped returns pattern with a backslash before each comma that has none.
func escaped(pattern string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); {
		_, _, next := at(pattern, i)
		if pattern[i] == ',' {
			b.WriteByte('\\')
		}
		b.WriteString(pattern[i:next])
		i = next
	}
	return b.String()
}
