package limit

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestAtMostIdle: however many connections are open and send nothing, a new client is answered, and so is one that has
// asked before.
func TestAtMostIdle(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(asked)
			<-answer
		}
		fmt.Fprint(w, "ok")
	})
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: handler}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := AtMostIdle(inner, 4, s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Close()
		<-served
	}()
	connect := func(request string) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(c, request)
		return c
	}
	ended := func(c net.Conn) bool {
		_, err := c.Read(make([]byte, 1))
		return err != nil
	}
	slow := connect("GET /slow HTTP/1.0\r\n\r\n")
	<-asked
	var idle []net.Conn
	for i := range 100 {
		idle = append(idle, connect("GET / HT"[:i%9]))
		if i%10 == 9 {
			text, err := io.ReadAll(connect("GET / HTTP/1.0\r\n\r\n"))
			if err != nil || len(text) == 0 {
				t.Errorf("beside %d connections that send nothing: %q, %v", len(idle), text, err)
			}
		}
	}
	for i, c := range idle[:90] {
		if !ended(c) {
			t.Errorf("connection %d of those that send nothing is there", i)
		}
	}
	close(answer)
	if text, err := io.ReadAll(slow); err != nil || len(text) == 0 {
		t.Errorf("a request that was being answered: %q, %v", text, err)
	}
}
