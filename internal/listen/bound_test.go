package listen

import (
	"io"
	"net"
	"testing"
)

// TestAtMost: what is beyond the bound is closed at once and said, and when one ends there is room for another.
func TestAtMost(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan int, 10)
	l := AtMost(inner, 2, func(n int) { said <- n })
	defer l.Close()
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dial()
	dial()
	first := <-accepted
	<-accepted
	for range 3 {
		if n, err := dial().Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("beyond the bound: %d bytes, %v", n, err)
		}
	}
	if n := <-said; n != 1 || len(said) > 0 || len(accepted) > 0 {
		t.Errorf("it said %d, and %d times more; %d connections more", n, len(said), len(accepted))
	}
	first.Close()
	first.Close() // which must not make room twice
	c := dial()
	third := <-accepted
	if _, err := third.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if n, err := dial().Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("beyond the bound again: %d bytes, %v", n, err)
	}
}
