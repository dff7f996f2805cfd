package kernelmesh

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
)

// flowSlots is FLOWS of kernelmesh.c.
const flowSlots = 32

// peer is a UDP server that replies when the test asks for it.
type peer struct {
	net.PacketConn
	at netip.AddrPort
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{c, netip.MustParseAddrPort(c.LocalAddr().String())}
}

// take receives the next datagram and returns its source.
func (p *peer) take(t *testing.T) net.Addr {
	t.Helper()
	_, from, err := p.ReadFrom(make([]byte, 100))
	if err != nil {
		t.Fatal(err)
	}
	return from
}

func (p *peer) reply(t *testing.T, to net.Addr) {
	t.Helper()
	if _, err := p.WriteTo([]byte(p.at.String()), to); err != nil {
		t.Fatal(err)
	}
}

// TestReplies: a reply comes from the address that the socket last used to send to the replying endpoint, whatever has
// happened to the endpoint, and to the service, meanwhile.
func TestReplies(t *testing.T) { overStores(t, testReplies, stores...) }

func testReplies(t *testing.T, store string) {
	first, second := newPeer(t), newPeer(t)
	at := func(service netip.AddrPort, p *peer) Service { return Service{service, UDP, []Endpoint{{p.at, 1}}} }
	before := []Service{at(service4, first), at(other4, second)}
	after := []Service{at(service4, second), at(other4, first)}

	d, dir := newDataPlane(t, Options{Store: store}, before...)
	in := newClient(t, dir)
	do := func(t *testing.T, what string, to netip.AddrPort) {
		t.Helper()
		in.ask(t, request{Do: what, To: to}).want(t, none, none, none)
	}
	replied := func(t *testing.T, p *peer, to net.Addr, as netip.AddrPort) {
		t.Helper()
		p.reply(t, to)
		in.ask(t, request{Do: "udp-receive"}).want(t, counted(p.at, 1), counted(as, 1), none)
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"the endpoint moves to another service", func(t *testing.T) {
			do(t, "udp-send", service4)
			client := first.take(t)
			replied(t, first, client, service4)
			d.set(t, after...)
			do(t, "udp-send", other4)
			first.take(t)
			replied(t, first, client, other4)
			// And back.
			d.set(t, before...)
			do(t, "udp-send", service4)
			first.take(t)
			replied(t, first, client, service4)
		}},
		{"a reply after the endpoint has moved", func(t *testing.T) {
			do(t, "udp-send", service4)
			client := first.take(t)
			d.set(t, after...)
			replied(t, first, client, service4)
			do(t, "udp-send", service4)
			second.take(t)
			replied(t, first, client, service4)
			replied(t, second, client, service4)
		}},
		{"a service used between many changes", func(t *testing.T) {
			do(t, "udp-send", other4)
			client := second.take(t)
			for i := range 3 * flowSlots {
				d.set(t, append(before, Service{service6, UDP, []Endpoint{{service6, uint32(1 + i)}}})...)
				do(t, "udp-send", service4)
				first.take(t)
			}
			replied(t, second, client, other4)
		}},
		{"the endpoint itself after its service", func(t *testing.T) {
			do(t, "udp-send", service4)
			client := first.take(t)
			do(t, "udp-send", first.at)
			first.take(t)
			replied(t, first, client, first.at)
			do(t, "udp-send", service4)
			first.take(t)
			replied(t, first, client, service4)
		}},
		{"connecting to the endpoint itself after its service", func(t *testing.T) {
			do(t, "udp-send", service4)
			client := first.take(t)
			do(t, "udp-connect", first.at)
			replied(t, first, client, first.at)
		}},
		{"a socket that was connected", func(t *testing.T) {
			do(t, "udp-connect", service4)
			do(t, "udp-disconnect", netip.AddrPort{})
			d.set(t, after...)
			do(t, "udp-send", other4)
			client := first.take(t)
			replied(t, first, client, other4)
			do(t, "udp-send", first.at)
			first.take(t)
			replied(t, first, client, first.at)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.set(t, before...)
			in.ask(t, request{Do: "udp-open"})
			c.do(t)
			in.ask(t, request{Do: "release"})
		})
	}
}

// TestRepliesOfMany: a socket that sends to as many services as it remembers, and to one of them all the time, gets
// the replies of all from their services; the least recently used service is forgotten first.
func TestRepliesOfMany(t *testing.T) { overStores(t, testRepliesOfMany, stores...) }

func testRepliesOfMany(t *testing.T, store string) {
	busy := newPeer(t)
	services := []Service{{service4, UDP, []Endpoint{{busy.at, 1}}}}
	var peers []*peer
	for i := range 2 * flowSlots {
		p := newPeer(t)
		to := netip.MustParseAddrPort(fmt.Sprintf("127.10.97.%d:80", i+1))
		peers, services = append(peers, p), append(services, Service{to, UDP, []Endpoint{{p.at, 1}}})
	}
	_, dir := newDataPlane(t, Options{Store: store}, services...)
	in := newClient(t, dir)
	in.ask(t, request{Do: "udp-open"})
	var client net.Addr
	for i, p := range peers {
		for _, to := range []netip.AddrPort{service4, services[1+i].Address} {
			in.ask(t, request{Do: "udp-send", To: to}).want(t, none, none, none)
		}
		busy.take(t)
		client = p.take(t)
	}
	receive := func(p *peer, as netip.AddrPort) {
		t.Helper()
		p.reply(t, client)
		in.ask(t, request{Do: "udp-receive"}).want(t, counted(p.at, 1), counted(as, 1), none)
	}
	receive(busy, service4)
	last := len(peers) - (flowSlots - 1) // the busy one has a slot
	for i, p := range peers[last:] {
		receive(p, services[1+last+i].Address)
	}
	in.ask(t, request{Do: "release"})
}
