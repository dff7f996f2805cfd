package dataplane

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"

	"tare/internal/mesh/proxy/config"
)

// plain is a request's path and query as they go on. Paths are those of the wire, made plain where the listener says
// so: routes and rules must see what the application will. It is false where the request must not go on.
func plain(r *http.Request, h *config.HTTP) (path, query string, ok bool) {
	if r.Method == http.MethodConnect || !isToken(r.Method) || !isHost(r.Host) {
		return "", "", false
	}
	path = r.RequestURI
	if path == "" || path[0] != '/' && path != "*" {
		path = r.URL.EscapedPath() // of http://host/path
		if path == "" {
			path = "/"
		}
		query = r.URL.RawQuery
	} else if i := strings.IndexByte(path, '?'); i >= 0 {
		path, query = path[:i], path[i+1:]
	}
	if !clean(path) || !clean(query) {
		return "", "", false
	}
	if h.Reject && escapedSlash(path) {
		return "", "", false
	}
	if h.Normalize {
		if path, ok = normal(path); !ok {
			return "", "", false
		}
	}
	if h.Merge {
		for strings.Contains(path, "//") {
			path = strings.ReplaceAll(path, "//", "/")
		}
	}
	return path, query, true
}

// isToken says whether a method is one (RFC 9110, section 9.1). HTTP/2 lets others through, and a blank in one would
// begin the path of the request to the application.
func isToken(method string) bool { return httpguts.ValidHeaderFieldName(method) } // a token too

// isHost says whether a text can be the host of a request: a name or an address with or without a port (RFC 9110,
// section 7.2). It may be empty, as the header Host may. By the letter a name may have a comma, but some applications
// would read two hosts.
func isHost(s string) bool { return httpguts.ValidHostHeader(s) && !strings.ContainsAny(s, ", /") }

// clean says whether a text can stand in the first line of a request. HTTP/2 has no such line, and lets blanks through.
func clean(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	return true
}

func escapedSlash(path string) bool {
	for i := 0; i+2 < len(path); i++ {
		if path[i] != '%' {
			continue
		}
		if c, ok := unhex(path[i+1], path[i+2]); ok && (c == '/' || c == '\\') {
			return true
		}
	}
	return false
}

func unhex(a, b byte) (byte, bool) {
	x, y := strings.IndexByte(digits, a|0x20), strings.IndexByte(digits, b|0x20)
	return byte(x<<4 | y), x >= 0 && y >= 0
}

const digits = "0123456789abcdef"

// normal is a path without escapes of what needs none, and with dots resolved (RFC 3986, sections 6.2.2.2 and 5.2.4). A
// backslash counts as a slash, as browsers have it. A path that leads above its root is refused.
func normal(path string) (string, bool) {
	if path == "*" || !strings.ContainsAny(path, `%\`) && !strings.Contains(path, "/.") {
		return path, true
	}
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c == '\\':
			c = '/'
		case c == '%':
			if i+2 >= len(path) {
				return "", false
			}
			d, ok := unhex(path[i+1], path[i+2])
			if !ok {
				return "", false
			}
			if unreserved(d) {
				c = d
				i += 2
			}
		}
		b.WriteByte(c)
	}
	var out []string
	list := strings.Split(b.String()[1:], "/")
	for i, s := range list {
		last := i == len(list)-1
		switch s {
		case ".":
			if last {
				out = append(out, "")
			}
		case "..":
			if len(out) == 0 {
				return "", false
			}
			if out = out[:len(out)-1]; last {
				out = append(out, "")
			}
		default:
			out = append(out, s)
		}
	}
	return "/" + strings.Join(out, "/"), true
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}
