package process

import (
	"net"
	"net/netip"
	"testing"
)

// TestReserve: a reserved port is not chosen as a free port, cannot be connected to, and can be bound by its number.
func TestReserve(t *testing.T) {
	r, err := Reserve(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", r.Address); err == nil {
		c.Close()
		t.Error("somebody listens there")
	}
	l, err := net.Listen("tcp", r.Address)
	if err != nil {
		t.Fatalf("the one that it is held for cannot listen: %v", err)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
		accepted <- err
	}()
	c, err := net.Dial("tcp", r.Address)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	l.Close()
	r.Release()
}

// TestReserveMany: a process that listens at any port never gets a reserved one.
func TestReserveMany(t *testing.T) {
	held := map[string]bool{}
	for range 200 {
		r, err := Reserve(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		if held[r.Address] {
			t.Fatalf("%s is held twice", r.Address)
		}
		held[r.Address] = true
	}
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if held[l.Addr().String()] {
			t.Errorf("%s was given to another who listens", l.Addr())
		}
		l.Close()
	}
}
