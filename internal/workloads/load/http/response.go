package http

import (
	"bytes"
	"errors"
)

// The response reader is Tare's own because the socket is: bytes come when epoll says so, in whatever pieces, and a
// reader that pulls from a stream (fasthttp's, net/http's) would need a goroutine and a buffer for each connection.
// This one is fed, keeps nothing but a torn line, allocates nothing on whole ones, and throws the body away as it
// passes.

// maxHead bounds the status line, header and trailer of one response (interim ones included), in bytes. nginx and Go's
// client draw the line at 8 KiB to 1 MiB.
const maxHead = 64 << 10

// errResponse is any breach of HTTP/1.1 by the server. One kind is enough for counting; which breach it was says the
// message.
var errResponse = errors.New("not a valid HTTP/1.1 response")

var (
	errStatusLine = wrap("status line")
	errHeader     = wrap("header line")
	errLength     = wrap("Content-Length")
	errHeadSize   = wrap("header longer than 64 KiB")
	errChunk      = wrap("chunk")
	errUpgrade    = wrap("switch of protocol that nobody asked for")
	errTruncated  = wrap("connection closed before the end")
)

type responseError string

func wrap(what string) error            { return responseError(what) }
func (e responseError) Error() string   { return errResponse.Error() + ": " + string(e) }
func (responseError) Is(err error) bool { return err == errResponse }

type phase uint8

const (
	statusLine phase = iota
	headerLine
	fixedBody // left bytes are to come
	chunkSize
	chunkBody // left bytes are to come
	chunkEnd  // the line end after a chunk
	trailer
	untilClose
	complete
)

// response reads one HTTP/1.1 response from whatever pieces it arrives in.
type response struct {
	phase     phase
	bodyless, // the request was HEAD
	http10, //
	keep, // Connection: keep-alive
	closing, // Connection: close
	coded, // Transfer-Encoding was there
	chunked, // and ends in chunked
	sized bool // Content-Length was there
	status  int    //
	length  int64  // by Content-Length
	left    int64  // bytes to come of the body or chunk
	head    int    // bytes of head (or of this line of framing, or of the trailer) so far
	partial []byte // of a line torn between reads
}

// reset makes r ready for the next response.
func (r *response) reset(bodyless bool) {
	*r = response{bodyless: bodyless, partial: r.partial[:0]}
}

// echoOf makes r ready for as many bytes as were sent, and nothing around them.
func (r *response) echoOf(sent []byte) { r.phase, r.left = fixedBody, int64(len(sent)) }

// reusable says whether the connection may carry another request after this (complete) response: RFC 9112, section 9.3.
// One framed in two ways at once, by a coding and a length or by a coding that its version lacks, is not to be trusted
// further.
func (r *response) reusable() bool {
	return r.phase == complete && !r.closing && (!r.http10 || r.keep) && !(r.coded && (r.sized || r.http10))
}

// feed takes the next bytes and says how many of them belong to this response, and whether it is complete.
func (r *response) feed(p []byte) (n int, done bool, err error) {
	for {
		switch r.phase {
		case complete:
			return n, true, nil
		case untilClose:
			return len(p), false, nil
		case fixedBody, chunkBody:
			take := min(r.left, int64(len(p)-n))
			n += int(take)
			if r.left -= take; r.left > 0 {
				return n, false, nil
			}
			if r.phase == fixedBody {
				r.phase = complete
			} else {
				r.phase = chunkEnd
			}
		default:
			line, took, whole := r.line(p[n:])
			n += took
			if r.head > maxHead {
				return n, false, errHeadSize
			}
			if !whole {
				return n, false, nil
			}
			err := r.take(line)
			r.partial = r.partial[:0]
			if err != nil {
				return n, false, err
			}
		}
	}
}

// line cuts the next line (without its end) off p, with what earlier reads left of it in front.
func (r *response) line(p []byte) (line []byte, took int, whole bool) {
	end := bytes.IndexByte(p, '\n')
	if end < 0 {
		r.head += len(p)
		if r.head <= maxHead {
			r.partial = append(r.partial, p...)
		}
		return nil, len(p), false
	}
	r.head += end + 1
	line = p[:end]
	if len(r.partial) > 0 {
		r.partial = append(r.partial, line...)
		line = r.partial
	}
	if last := len(line) - 1; last >= 0 && line[last] == '\r' {
		line = line[:last]
	}
	return line, end + 1, true
}

// take handles one whole line of the head or of the chunked framing.
func (r *response) take(line []byte) error {
	switch r.phase {
	case statusLine:
		return r.takeStatus(line)
	case headerLine:
		if len(line) == 0 {
			return r.endOfHead()
		}
		return r.takeHeader(line)
	case chunkSize:
		size, ok := parseHex(line)
		if !ok {
			return errChunk
		}
		r.head = 0 // the limit holds for each line of framing and for the trailer, not for a long body
		if r.left = size; size == 0 {
			r.phase = trailer
		} else {
			r.phase = chunkBody
		}
	case chunkEnd:
		if len(line) != 0 {
			return errChunk
		}
		r.head, r.phase = 0, chunkSize
	case trailer:
		if len(line) == 0 {
			r.phase = complete
		}
	}
	return nil
}

// takeStatus reads "HTTP/1.1 200 OK"; the reason may be missing.
func (r *response) takeStatus(line []byte) error {
	const form = "HTTP/1.x 200"
	if len(line) < len(form) || string(line[:7]) != "HTTP/1." || line[8] != ' ' ||
		len(line) > len(form) && line[12] != ' ' {
		return errStatusLine
	}
	switch line[7] {
	case '1':
		r.http10 = false
	case '0':
		r.http10 = true
	default:
		return errStatusLine
	}
	status := 0
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return errStatusLine
		}
		status = status*10 + int(c-'0')
	}
	if status < 100 || status > 599 {
		return errStatusLine
	}
	r.status, r.phase = status, headerLine
	return nil
}

// takeHeader reads one field; only those that frame the message matter.
func (r *response) takeHeader(line []byte) error {
	colon := bytes.IndexByte(line, ':')
	// Space before the colon, and lines that continue the one before, are how messages get two readings: RFC 9112, 5.1
	// and 5.2.
	if colon <= 0 || line[0] == ' ' || line[0] == '\t' || line[colon-1] == ' ' || line[colon-1] == '\t' {
		return errHeader
	}
	switch colon {
	case len("Connection"):
		if foldEqual(line[:colon], "connection") {
			eachToken(line[colon+1:], func(token []byte) {
				r.closing = r.closing || foldEqual(token, "close")
				r.keep = r.keep || foldEqual(token, "keep-alive")
			})
		}
	case len("Content-Length"):
		if foldEqual(line[:colon], "content-length") {
			length, ok := parseDecimal(trim(line[colon+1:]))
			if !ok || r.sized && length != r.length {
				return errLength
			}
			r.sized, r.length = true, length
		}
	case len("Transfer-Encoding"):
		if foldEqual(line[:colon], "transfer-encoding") {
			r.coded = true
			eachToken(line[colon+1:], func(token []byte) { r.chunked = foldEqual(token, "chunked") }) // the last one counts
		}
	}
	return nil
}

// endOfHead decides how the body ends: RFC 9112, section 6.3.
func (r *response) endOfHead() error {
	switch {
	case r.status == 101:
		return errUpgrade
	case r.status < 200: // interim: the real one follows
		*r = response{bodyless: r.bodyless, head: r.head, partial: r.partial}
	case r.bodyless || r.status == 204 || r.status == 304:
		r.phase = complete
	case r.chunked:
		r.phase = chunkSize
	case r.coded || !r.sized:
		r.phase, r.closing = untilClose, true
	case r.length == 0:
		r.phase = complete
	default:
		r.phase, r.left = fixedBody, r.length
	}
	return nil
}

// eof is told that the server closed the connection: nil when that is how the response ends.
func (r *response) eof() error {
	if r.phase == untilClose {
		r.phase = complete
	}
	if r.phase == complete {
		return nil
	}
	return errTruncated
}

// eachToken calls f with each element of a comma-separated field value.
func eachToken(value []byte, f func([]byte)) {
	for len(value) > 0 {
		var token []byte
		if comma := bytes.IndexByte(value, ','); comma >= 0 {
			token, value = value[:comma], value[comma+1:]
		} else {
			token, value = value, nil
		}
		if token = trim(token); len(token) > 0 {
			f(token)
		}
	}
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// foldEqual compares with a lower-case ASCII word, without regard to case.
func foldEqual(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// parseDecimal reads digits only (no sign, no list), at most 18 of them: what an int64 holds.
func parseDecimal(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var v int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + int64(c-'0')
	}
	return v, true
}

// parseHex reads the size of a chunk, at most 15 digits, before any extension.
func parseHex(line []byte) (int64, bool) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	line = trim(line)
	if len(line) == 0 || len(line) > 15 {
		return 0, false
	}
	var v int64
	for _, c := range line {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		v = v<<4 | int64(c)
	}
	return v, true
}
