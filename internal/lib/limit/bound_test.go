package limit

import (
	"io"
	"net"
	"testing"
)

// accepting starts a listener that is limited to two connections, and accepts all that it lets through. It returns
// these connections, the numbers that the listener reports, and a function that connects to it.
func accepting(t *testing.T, bound func(net.Listener, int,
	func(int)) net.Listener) (accepted chan net.Conn, said chan int, dial func() net.Conn) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said = make(chan int, 10)
	l := bound(inner, 2, func(n int) { said <- n })
	t.Cleanup(func() { l.Close() })
	accepted = make(chan net.Conn, 10)
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
	return accepted, said, func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// TestAtMost: connections beyond the bound are closed at once and reported, and when a connection ends there is room
// for another.
func TestAtMost(t *testing.T) {
	accepted, said, dial := accepting(t, AtMost)
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
	first.Close() // a second Close must not make room again
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

// TestAtMostKnown: at the bound, the oldest connection of an unknown peer is closed for a new one. Connections of known
// peers stay, and if all are of known peers, the new one is closed.
func TestAtMostKnown(t *testing.T) {
	accepted, said, dial := accepting(t, AtMostKnown)
	enter := func() (near, far net.Conn) {
		t.Helper()
		far = dial()
		return <-accepted, far
	}
	closed := func(what string, far net.Conn) {
		t.Helper()
		if n, err := far.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%s stays: %d bytes, %v", what, n, err)
		}
	}
	open := func(what string, near, far net.Conn) {
		t.Helper()
		if _, err := near.Write([]byte("x")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	known, farKnown := enter()
	Settle(known)
	first, farFirst := enter()
	second, farSecond := enter()
	closed("the first stranger", farFirst)
	first.Close() // this connection was closed already, so this must not make room
	open("the one that is known", known, farKnown)
	open("the second stranger", second, farSecond)
	Settle(first) // too late: it changes nothing
	Settle(second)
	Settle(second)
	closed("one beyond those that are known", dial())
	second.Close()
	second.Close()
	third, farThird := enter()
	open("the third stranger", third, farThird)
	fourth, farFourth := enter()
	closed("the third stranger", farThird)
	open("the fourth stranger", fourth, farFourth)
	open("the one that is known", known, farKnown)
	if n := <-said; n != 1 || len(said) > 0 || len(accepted) > 0 {
		t.Errorf("it said %d, and %d times more; %d connections more", n, len(said), len(accepted))
	}
	Settle(farKnown) // this connection belongs to no listener
}
