package http

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

// outcome is the result of reading a stream of bytes.
type outcome struct {
	status   int
	complete bool // the response ended, by its framing or by the end of the stream
	took     int  // bytes that belong to it
	reusable bool
	err      error
}

// readAll feeds a response in pieces of the given size, then the end of the stream.
func readAll(stream []byte, piece int, head bool) outcome {
	var r response
	r.reset(head)
	var o outcome
	for at := 0; at < len(stream); {
		n, done, err := r.feed(stream[at:min(at+piece, len(stream))])
		at += n
		o.took = at
		if err != nil || done {
			o.err, o.complete = err, done
			break
		}
		if n == 0 {
			panic("no progress")
		}
	}
	if !o.complete && o.err == nil {
		o.err = r.eof()
		o.complete = o.err == nil
	}
	o.status, o.reusable = r.status, r.reusable()
	return o
}

var responses = []struct {
	name, stream string
	head         bool
	want         outcome // took counts from the start; -1 for all
}{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", false, outcome{200, true, -1, true, nil}},
	{"case and spaces", "HTTP/1.1 200 OK\r\ncOnTent-lEngth: \t 3 \r\n\r\nabc", false, outcome{200, true, -1, true, nil}},
	{"bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", false, outcome{200, true, -1, true, nil}},
	{"no reason", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", false, outcome{200, true, -1, true, nil}},
	{"more after the end", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", false, outcome{200, true, 41, true, nil}},
	{"the same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", false,
		outcome{200, true, -1, true, nil}},
	{"connection close", "HTTP/1.1 200 OK\r\nConnection: foo, Close\r\nContent-Length: 3\r\n\r\nabc", false,
		outcome{200, true, -1, false, nil}},
	{"1.0", "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", false, outcome{200, true, -1, false, nil}},
	{"1.0 kept alive", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", false,
		outcome{200, true, -1, true, nil}},
	{"until close", "HTTP/1.1 200 OK\r\n\r\nabc", false, outcome{200, true, -1, false, nil}},
	{"another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc", false, outcome{200, true, -1, false, nil}},
	{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: " +
		"chunked\r\n\r\n3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nT: 1\r\n\r\n", false, outcome{200, true, -1, true, nil}},
	{"gzip, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", false,
		outcome{200, true, -1, true, nil}},
	{"chunked and length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false,
		outcome{200, true, -1, false, nil}},
	{"chunked 1.0", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false,
		outcome{200, true, -1, false, nil}},
	{"interim", "HTTP/1.1 100 Continue\r\nX: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nConnection: close\r\n\r\nHTTP/1.1 201 " +
		"Created\r\nContent-Length: 0\r\n\r\n", false, outcome{201, true, -1, true, nil}},
	{"head", "HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n", true, outcome{200, true, -1, true, nil}},
	{"no content", "HTTP/1.1 204 No Content\r\n\r\n", false, outcome{204, true, -1, true, nil}},
	{"not modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 300\r\n\r\n", false, outcome{304, true, -1, true, nil}},
	{"an error of the server", "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", false, outcome{503, true, -1, true, nil}},

	{"nothing", "", false, outcome{err: errTruncated}},
	{"torn status line", "HTTP/1.", false, outcome{took: -1, err: errTruncated}},
	{"torn header", "HTTP/1.1 200 OK\r\nContent-Le", false, outcome{200, false, -1, false, errTruncated}},
	{"torn body", "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc", false, outcome{200, false, -1, false, errTruncated}},
	{"torn chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30\r\nabc", false,
		outcome{200, false, -1, false, errTruncated}},
	{"no last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", false,
		outcome{200, false, -1, false, errTruncated}},
	{"only interim", "HTTP/1.1 100 Continue\r\n\r\n", false, outcome{took: -1, err: errTruncated}},
	{"garbage", "\x00\xff\x16\x03\x01garbage\n", false, outcome{took: -1, err: errStatusLine}},
	{"HTTP/2", "HTTP/2.0 200 OK\r\n", false, outcome{took: -1, err: errStatusLine}},
	{"HTTP/1.2", "HTTP/1.2 200 OK\r\n", false, outcome{took: -1, err: errStatusLine}},
	{"short status", "HTTP/1.1 20\r\n", false, outcome{took: -1, err: errStatusLine}},
	{"long status", "HTTP/1.1 2000 OK\r\n", false, outcome{took: -1, err: errStatusLine}},
	{"status 999", "HTTP/1.1 999 Hm\r\n", false, outcome{took: -1, err: errStatusLine}},
	{"status 099", "HTTP/1.1 099 Hm\r\n", false, outcome{took: -1, err: errStatusLine}},
	{"upgrade", "HTTP/1.1 101 Switching\r\n\r\n", false, outcome{101, false, -1, false, errUpgrade}},
	{"no colon", "HTTP/1.1 200 OK\r\nX\r\n", false, outcome{200, false, -1, false, errHeader}},
	{"space before colon", "HTTP/1.1 200 OK\r\nContent-Length : 3\r\n", false, outcome{200, false, -1, false, errHeader}},
	{"folded line", "HTTP/1.1 200 OK\r\nX: 1\r\n Y: 2\r\n", false, outcome{200, false, -1, false, errHeader}},
	{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n", false, outcome{200, false, -1, false, errLength}},
	{"signed length", "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n", false, outcome{200, false, -1, false, errLength}},
	{"empty length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n", false, outcome{200, false, -1, false, errLength}},
	{"list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n", false, outcome{200, false, -1, false, errLength}},
	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n", false,
		outcome{200, false, -1, false, errLength}},
	{"length beyond 63 bits", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n", false,
		outcome{200, false, -1, false, errLength}},
	{"huge length", "HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999\r\n\r\nabc", false,
		outcome{200, false, -1, false, errTruncated}},
	{"negative chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n", false,
		outcome{200, false, -1, false, errChunk}},
	{"empty chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", false,
		outcome{200, false, -1, false, errChunk}},
	{"chunk beyond 63 bits", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", false,
		outcome{200, false, -1, false, errChunk}},
	{"chunk longer than it said", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", false,
		outcome{200, false, -1, false, errChunk}},
	{"huge header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n", false,
		outcome{200, false, 0, false, errHeadSize}},
	{"many headers", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: 1\r\n", maxHead/6+1), false,
		outcome{200, false, 0, false, errHeadSize}},
	{"endless interim", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHead/25+1), false,
		outcome{0, false, 0, false, errHeadSize}},
	{"huge trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" +
		strings.Repeat("X: 1\r\n", maxHead/6+1), false, outcome{200, false, 0, false, errHeadSize}},
}

func TestResponse(t *testing.T) {
	for _, tt := range responses {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 3, 7, 1 << 20} {
				got := readAll([]byte(tt.stream), piece, tt.head)
				want := tt.want
				if want.took == -1 {
					want.took = len(tt.stream)
				}
				if errors.Is(want.err, errHeadSize) {
					want.took, want.status = got.took, got.status // depends on the pieces
				}
				if got != want {
					t.Errorf("in pieces of %d bytes: %+v, want %+v", piece, got, want)
				}
				if got.err != nil && !errors.Is(got.err, errResponse) {
					t.Errorf("%v is not the general error", got.err)
				}
			}
		})
	}
}

// FuzzResponse compares the reader with itself, fed in other pieces, and with net/http: a response that both accept
// must have the same status in both and, if the connection can carry another, end at the same byte.
func FuzzResponse(f *testing.F) {
	for _, r := range responses {
		if len(r.stream) < 1000 {
			f.Add([]byte(r.stream), 5, r.head)
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte, piece int, head bool) {
		whole := readAll(stream, len(stream)+1, head)
		if torn := readAll(stream, max(piece, 1), head); torn != whole && !errors.Is(whole.err, errHeadSize) &&
			!errors.Is(torn.err, errHeadSize) {
			if whole.err == nil || torn.err == nil || !errors.Is(torn.err, whole.err) {
				t.Errorf("whole %+v, in pieces of %d %+v", whole, piece, torn)
			}
		}
		if !whole.complete || whole.took > len(stream) {
			return
		}
		request := &http.Request{Method: "GET"}
		if head {
			request.Method = "HEAD"
		}
		source := bytes.NewReader(stream)
		buffered := bufio.NewReader(source)
		for {
			theirs, err := http.ReadResponse(buffered, request)
			if err != nil {
				return // net/http is stricter: it checks the names and values of all fields
			}
			if theirs.StatusCode < 200 && theirs.StatusCode != 101 {
				continue
			}
			if _, err := io.Copy(io.Discard, theirs.Body); err != nil {
				return
			}
			_ = theirs.Body.Close()
			if theirs.StatusCode != whole.status {
				t.Errorf("status %d, net/http reads %d", whole.status, theirs.StatusCode)
			}
			if took := len(stream) - source.Len() - buffered.Buffered(); whole.reusable && took != whole.took {
				t.Errorf("%d bytes, net/http takes %d", whole.took, took)
			}
			return
		}
	})
}

var typical = []byte("HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 20 Nov 2026 16:40:51 " +
	"GMT\r\nContent-Type: text/plain\r\n" +
	"Content-Length: 127\r\nConnection: keep-alive\r\n\r\n" + strings.Repeat("x", 127))

func BenchmarkResponse(b *testing.B) {
	var r response
	b.ReportAllocs()
	for b.Loop() {
		r.reset(false)
		if _, done, err := r.feed(typical); !done || err != nil {
			b.Fatal(done, err)
		}
	}
}

// BenchmarkFasthttp does the same with the parser of fasthttp, the alternative, which needs a bufio.Reader.
func BenchmarkFasthttp(b *testing.B) {
	var r fasthttp.Response
	source := bytes.NewReader(typical)
	buffered := bufio.NewReader(source)
	b.ReportAllocs()
	for b.Loop() {
		source.Reset(typical)
		buffered.Reset(source)
		if err := r.Read(buffered); err != nil {
			b.Fatal(err)
		}
	}
}
