package limit

import (
	"io"
	"net"
	"testing"
)

// TestLatest: if there are too many connections, the oldest open one is closed.
func TestLatest(t *testing.T) {
	l := NewLatest(2)
	var near, far []net.Conn
	add := func() {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		near, far = append(near, l.Add(a, a)), append(far, b)
	}
	check := func(open ...bool) {
		t.Helper()
		for i, want := range open {
			sent := make(chan error, 1)
			go func() {
				_, err := near[i].Write([]byte("x"))
				sent <- err
			}()
			_, err := io.ReadFull(far[i], make([]byte, 1))
			if is := err == nil && <-sent == nil; is != want {
				t.Errorf("connection %d is open: %v", i, is)
			}
		}
	}
	add()
	add()
	check(true, true)
	add()
	check(false, true, true)
	near[0].Close() // this connection was closed already
	near[2].Close()
	add()
	check(false, true, false, true)
	add()
	check(false, false, false, true, true)
	if len(l.open) != 2 {
		t.Errorf("%d are kept", len(l.open))
	}
}
