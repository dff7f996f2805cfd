package tracer

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// parsePath reads a path into JSON: keys with dots between, a number for the place in a list. A dot before the first is
// allowed, as jq has it.
// The error reads on after what the path is called.
func parsePath(text string) ([]string, error) {
	path := strings.Split(strings.TrimPrefix(text, "."), ".")
	for _, key := range path {
		if strings.TrimSpace(key) == "" {
			return nil, errors.New("is no path: write the keys with a dot between, such as stats.delivered")
		}
	}
	return path, nil
}

// lookUp finds the whole number at a path in a line of JSON, without decoding the rest. A number in a string counts
// too: that is how 64 bits are often written. False: the line has none there, or is no JSON as far as it was read. Of
// a key that stands twice the last counts.
func lookUp(line []byte, path []string) (int64, bool) {
	s := scan{b: line}
	return s.find(path)
}

// scan goes through one JSON text. It checks no more of it than it needs to find its way.
type scan struct {
	b   []byte
	i   int
	bad bool
}

func (s *scan) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// next takes a byte if it is the next after blanks.
func (s *scan) next(c byte) bool {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// find looks for the path in the value that comes next, and reads past the value.
func (s *scan) find(path []string) (n int64, ok bool) {
	s.space()
	switch {
	case s.bad || s.i >= len(s.b):
		s.bad = true
	case len(path) == 0:
		return s.number()
	case s.b[s.i] == '{':
		return s.object(path)
	case s.b[s.i] == '[':
		return s.list(path)
	default:
		s.skip()
	}
	return 0, false
}

func (s *scan) object(path []string) (n int64, ok bool) {
	s.i++
	for first := true; !s.next('}'); first = false {
		if !first && !s.next(',') {
			s.bad = true
			return 0, false
		}
		s.space()
		raw, escaped := s.text()
		if s.bad || !s.next(':') {
			s.bad = true
			return 0, false
		}
		if isKey(raw, escaped, path[0]) {
			n, ok = s.find(path[1:])
		} else {
			s.space()
			s.skip()
		}
		if s.bad {
			return 0, false
		}
	}
	return n, ok
}

func isKey(raw []byte, escaped bool, key string) bool {
	if !escaped {
		return string(raw) == key
	}
	var decoded string
	return json.Unmarshal([]byte(`"`+string(raw)+`"`), &decoded) == nil && decoded == key
}

func (s *scan) list(path []string) (n int64, ok bool) {
	s.i++
	at, err := strconv.Atoi(path[0])
	if err != nil {
		at = -1
	}
	for i := 0; !s.next(']'); i++ {
		if i > 0 && !s.next(',') {
			s.bad = true
			return 0, false
		}
		if i == at {
			n, ok = s.find(path[1:])
		} else {
			s.space()
			s.skip()
		}
		if s.bad {
			return 0, false
		}
	}
	return n, ok
}

// text reads a string and gives what is between its quotes, and whether there is a \ in it.
func (s *scan) text() (raw []byte, escaped bool) {
	if s.i >= len(s.b) || s.b[s.i] != '"' {
		s.bad = true
		return nil, false
	}
	begin := s.i + 1
	for s.i = begin; s.i < len(s.b); s.i++ {
		switch s.b[s.i] {
		case '\\':
			escaped = true
			s.i++
		case '"':
			raw = s.b[begin:s.i]
			s.i++
			return raw, escaped
		}
	}
	s.bad = true
	return nil, false
}

// skip reads past a value, whatever it is: of objects and lists only that their brackets come in pairs.
func (s *scan) skip() {
	for depth := 0; ; {
		if s.i >= len(s.b) {
			s.bad = true
			return
		}
		switch s.b[s.i] {
		case '"':
			s.text()
			if s.bad {
				return
			}
		case '{', '[':
			depth++
			s.i++
		case '}', ']':
			depth--
			s.i++
		case ',', ':', ' ', '\t', '\r', '\n':
			if depth == 0 {
				s.bad = true // where a value must be
				return
			}
			s.i++
		default:
			s.word()
		}
		if depth <= 0 {
			s.bad = s.bad || depth < 0
			return
		}
	}
}

// word reads a number, true, false or null.
func (s *scan) word() []byte {
	begin := s.i
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ',', ':', ' ', '\t', '\r', '\n', '}', ']', '{', '[', '"':
			return s.b[begin:s.i]
		}
		s.i++
	}
	return s.b[begin:s.i]
}

// number reads a value that should be a whole number, not negative.
func (s *scan) number() (int64, bool) {
	var word []byte
	switch s.b[s.i] {
	case '"':
		word, _ = s.text()
	case '{', '[', '}', ']', ',', ':':
		s.skip()
		return 0, false
	default:
		word = s.word()
	}
	return whole(string(word))
}

// whole reads a whole number that is not negative, in any way of writing it.
func whole(text string) (int64, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return max(n, 0), n >= 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || f >= 1<<63 || f != float64(int64(f)) {
		return 0, false
	}
	return int64(f), true
}
