package dataplane

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A body goes on being sent after the time that the server had when the request began.
func TestLongUpload(t *testing.T) {
	text := strings.Repeat("upload ", 20000)
	for name, x := range map[string]struct {
		body   string
		length int64
	}{
		"of a length": {text, int64(len(text))},
		"in chunks":   {text, -1},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			defer theirs.Close() // not before: the end of the body is read after all of it has arrived
			got := make(chan string, 1)
			go func() {
				r, err := http.ReadRequest(bufio.NewReader(theirs))
				if err != nil {
					got <- err.Error()
					return
				}
				b, _ := io.ReadAll(r.Body) // what is missing is seen
				got <- string(b)
			}()
			l := &link{Conn: ours, of: &upstream{proxy: &Proxy{}}, out: bufio.NewWriterSize(ours, linkBuffer)}
			r, err := http.NewRequest(http.MethodPost, "http://host/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.URL.Opaque, r.ContentLength = "/", x.length
			r.Body = io.NopCloser(&lateBody{from: strings.NewReader(x.body), late: func() {
				l.sendUntil = time.Now().Add(-time.Second) // as it is sendLimit after the request began
				if err := ours.SetWriteDeadline(l.sendUntil); err != nil {
					t.Error(err)
				}
			}})
			if err := l.allowSend(time.Now()); err != nil {
				t.Fatal(err)
			}
			sent, err := l.send(r)
			if err == nil && sent != nil {
				err = <-sent
			}
			if err != nil {
				t.Fatalf("sending: %v", err)
			}
			if b := <-got; b != x.body {
				t.Errorf("%d bytes of %d came", len(b), len(x.body))
			}
		})
	}
}

// lateBody is a body before each part of which the time to send is up.
type lateBody struct {
	from io.Reader
	late func()
}

func (b *lateBody) Read(p []byte) (int, error) {
	b.late()
	return b.from.Read(p)
}
