package exectrace

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode"
	"unicode/utf8"
	"unsafe"
)

// event is one exec from the ring.
type event struct {
	head *exectraceEvent
	name []byte // file name
	args []byte // each followed by a zero byte; the last may be truncated
}

const headBytes = int(unsafe.Sizeof(exectraceEvent{}))

// decode decodes a record without copying it. It returns false if the record is invalid.
func decode(record []byte) (event, bool) {
	if len(record) < headBytes {
		return event{}, false
	}
	head := (*exectraceEvent)(unsafe.Pointer(&record[0])) // records are aligned to 8 bytes
	text := record[headBytes:]
	if int(head.NameBytes)+int(head.ArgsBytes) != len(text) {
		return event{}, false
	}
	return event{head, text[:head.NameBytes], text[head.NameBytes:]}, true
}

func (e event) comm() []byte {
	comm, _ := nextArg(e.head.Comm[:])
	return comm
}

// nextArg splits args at the first zero byte.
func nextArg(args []byte) (first, rest []byte) {
	first, rest, _ = bytes.Cut(args, []byte{0})
	return first, rest
}

// appendJSON appends the event as a line of JSON. It allocates memory only if b must grow, or if a string must be
// escaped.
func (e event) appendJSON(b []byte, c *clock, g *group) []byte {
	h := e.head
	b = append(b, `{"time":"`...)
	b = c.append(b, h.Time)
	b = append(b, `","pid":`...)
	b = strconv.AppendUint(b, uint64(h.Pid), 10)
	b = append(b, `,"ppid":`...)
	b = strconv.AppendUint(b, uint64(h.Ppid), 10)
	b = append(b, `,"uid":`...)
	b = strconv.AppendUint(b, uint64(h.Uid), 10)
	b = append(b, `,"cgroup":`...)
	b = append(b, g.json...)
	b = append(b, `,"cgroup_id":`...)
	b = strconv.AppendUint(b, h.Cgroup, 10)
	b = append(b, `,"comm":`...)
	b = appendJSONString(b, e.comm())
	b = append(b, `,"filename":`...)
	b = appendJSONString(b, e.name)
	b = append(b, `,"args":[`...)
	for first, rest := []byte(nil), e.args; len(rest) > 0; {
		if first != nil {
			b = append(b, ',')
		}
		first, rest = nextArg(rest)
		b = appendJSONString(b, first)
	}
	b = append(b, ']')
	if h.Flags&uint32(exectraceFlagsARGS_CUT) != 0 {
		b = append(b, `,"truncated":true`...)
	}
	if h.Flags&uint32(exectraceFlagsARGS_UNREADABLE|exectraceFlagsNAME_UNREADABLE) != 0 {
		b = append(b, `,"unreadable":true`...)
	}
	return append(b, '}', '\n')
}

// appendJSONString appends bytes as a JSON string, like encoding/json, but without escaping for HTML. Invalid UTF-8
// becomes U+FFFD.
func appendJSONString(b, s []byte) []byte {
	if plain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(string(s)) // encoding a string into memory cannot fail
	return append(b, bytes.TrimSuffix(out.Bytes(), []byte{'\n'})...)
}

// plain reports whether bytes need no escaping in a JSON string. In most execs they do not.
func plain(s []byte) bool {
	for _, c := range s {
		if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// tableHead is the heading of the columns that appendTable fills.
const tableHead = "TIME            UID      PID      PPID     COMM             CGROUP                   COMMAND\n"

// appendTable appends the event as a line for people. The file name stands in place of the first argument.
func (e event) appendTable(b []byte, c *clock, g *group) []byte {
	h := e.head
	b = append(c.append(b, h.Time), ' ')
	for _, n := range []uint32{h.Uid, h.Pid, h.Ppid} {
		b = column(b, 9, func(b []byte) []byte { return strconv.AppendUint(b, uint64(n), 10) })
	}
	b = column(b, 17, func(b []byte) []byte { return appendWord(b, e.comm()) })
	b = column(b, 25, func(b []byte) []byte { return appendWord(b, g.text) })
	b = appendWord(b, e.name)
	for _, rest := nextArg(e.args); len(rest) > 0; {
		var one []byte
		one, rest = nextArg(rest)
		b = appendWord(append(b, ' '), one)
	}
	switch {
	case h.Flags&uint32(exectraceFlagsARGS_CUT) != 0:
		b = append(b, " ..."...)
	case h.Flags&uint32(exectraceFlagsARGS_UNREADABLE) != 0:
		b = append(b, " ?"...)
	}
	return append(b, '\n')
}

// column calls add and pads its output with spaces to a width. It appends at least one space.
func column(b []byte, width int, add func([]byte) []byte) []byte {
	from := len(b)
	b = append(add(b), ' ')
	for utf8.RuneCount(b[from:]) < width {
		b = append(b, ' ')
	}
	return b
}

// appendWord appends bytes as one word. It quotes them if they are not one word, or contain terminal control
// characters.
func appendWord(b, s []byte) []byte {
	quoted := len(s) == 0
	for i := 0; i < len(s) && !quoted; {
		r, n := utf8.DecodeRune(s[i:])
		quoted = r == utf8.RuneError && n == 1 || r == '"' || r == '\'' || r == '\\' || unicode.IsSpace(r) ||
			!strconv.IsPrint(r)
		i += n
	}
	if quoted {
		return strconv.AppendQuote(b, string(s))
	}
	return append(b, s...)
}
