package http

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// This package has its own response reader because it has its own sockets: data arrives when epoll reports it, in
// pieces of any size. A reader that pulls from a stream (fasthttp's, net/http's) would need a goroutine and a buffer
// for each connection. The reader here gets the pieces, keeps only an incomplete line, allocates no memory for complete
// lines, and discards the body.

// maxHead is the maximum length, in bytes, of the status line, header and trailer of one response, including interim
// responses. The limits of nginx and of Go's client are between 8 KiB and 1 MiB.
const maxHead = 64 << 10

// errResponse matches all errors about a server's violations of HTTP/1.1, which are counted as one kind.
var errResponse = errors.New("not a valid HTTP/1.1 response")

var (
	errStatusLine = wrap("status line")
	errHeader     = wrap("header line")
	errLength     = wrap("Content-Length")
	errHeadSize   = wrap("header longer than 64 KiB")
	errChunk      = wrap("chunk")
	errUpgrade    = wrap("switch of protocol without a request for it")
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
	fixedBody // response.left bytes are still to come
	chunkSize
	chunkBody // response.left bytes of the chunk are still to come
	chunkEnd  // the line end after a chunk
	trailer
	untilClose
	complete
)

// response reads one HTTP/1.1 response, in whatever pieces it arrives.
type response struct {
	phase     phase
	bodyless, // the request was HEAD
	http10, // the response's version is HTTP/1.0
	keep, // Connection: keep-alive
	closing, // Connection: close
	coded, // there was a Transfer-Encoding
	chunked, // the last transfer coding is chunked
	sized bool // there was a Content-Length
	status  int    // HTTP status
	length  int64  // the value of Content-Length
	left    int64  // bytes of the body or chunk still to come
	head    int    // bytes so far of the head, of the current line of framing, or of the trailer
	partial []byte // the beginning of a line that is split between reads
}

// reset makes r ready for the next response.
func (r *response) reset(bodyless bool) {
	*r = response{bodyless: bodyless, partial: r.partial[:0]}
}

// echoOf prepares r for an echo of exactly the bytes that were sent.
func (r *response) echoOf(sent []byte) { r.phase, r.left = fixedBody, int64(len(sent)) }

// reusable reports whether the connection may carry another request after this complete response (RFC 9112, section
// 9.3). Ambiguous framing makes the connection untrustworthy: both a transfer coding and a length, or a transfer coding
// in HTTP/1.0.
func (r *response) reusable() bool {
	return r.phase == complete && !r.closing && (!r.http10 || r.keep) && !(r.coded && (r.sized || r.http10))
}

// feed processes the next bytes. It returns how many of them belong to this response, and whether the response is
// complete.
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

// line takes the next line from p and returns it without its line end, preceded by its beginning from earlier reads.
// took is the number of bytes of p that it used. If p does not contain the end of the line, whole is false.
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

// take processes one complete line of the head or of the chunked framing.
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
		digits, _, _ := bytes.Cut(line, []byte(";")) // before any extension
		size, err := strconv.ParseUint(string(bytes.Trim(digits, blanks)), 16, 63)
		if err != nil {
			return errChunk
		}
		r.head = 0 // the limit applies to each line of framing and to the trailer, not to a long body
		if r.left = int64(size); size == 0 {
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

// takeStatus parses a status line such as "HTTP/1.1 200 OK". The reason may be missing.
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
	status, err := strconv.ParseUint(string(line[9:12]), 10, 16)
	if err != nil || status < 100 || status > 599 {
		return errStatusLine
	}
	r.status, r.phase = int(status), headerLine
	return nil
}

// takeHeader parses one field. Only fields that affect the message's framing or the connection matter.
func (r *response) takeHeader(line []byte) error {
	colon := bytes.IndexByte(line, ':')
	// Space before the colon, and continuation lines, make messages ambiguous: RFC 9112, sections 5.1 and 5.2.
	if colon <= 0 || strings.IndexByte(blanks, line[0]) >= 0 || strings.IndexByte(blanks, line[colon-1]) >= 0 {
		return errHeader
	}
	switch name, value := line[:colon], line[colon+1:]; {
	case foldEqual(name, "connection"):
		eachToken(value, func(token []byte) {
			r.closing = r.closing || foldEqual(token, "close")
			r.keep = r.keep || foldEqual(token, "keep-alive")
		})
	case foldEqual(name, "content-length"):
		length, err := strconv.ParseUint(string(bytes.Trim(value, blanks)), 10, 63)
		if err != nil || r.sized && int64(length) != r.length {
			return errLength
		}
		r.sized, r.length = true, int64(length)
	case foldEqual(name, "transfer-encoding"):
		r.coded = true
		eachToken(value, func(token []byte) { r.chunked = foldEqual(token, "chunked") }) // the last coding decides
	}
	return nil
}

// endOfHead decides how the body ends (RFC 9112, section 6.3).
func (r *response) endOfHead() error {
	switch {
	case r.status == 101:
		return errUpgrade
	case r.status < 200: // interim: the final response follows
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

// eof processes the end of the connection by the server. It returns nil if the response is complete.
func (r *response) eof() error {
	if r.phase == untilClose {
		r.phase = complete
	}
	if r.phase == complete {
		return nil
	}
	return errTruncated
}

const blanks = " \t"

// eachToken calls f with each element of a comma-separated field value.
func eachToken(value []byte, f func([]byte)) {
	for token := range bytes.SplitSeq(value, []byte(",")) {
		if token = bytes.Trim(token, blanks); len(token) > 0 {
			f(token)
		}
	}
}

// foldEqual compares b with an ASCII word, ignoring case. With equal lengths, only ASCII letters can match: other
// letters that fold to ASCII ones have longer encodings.
func foldEqual(b []byte, word string) bool {
	return len(b) == len(word) && strings.EqualFold(string(b), word)
}
