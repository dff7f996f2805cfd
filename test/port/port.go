// Package port gives tests ports for programs that cannot choose a free port and report it.
package port

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
)

// The ports are below those that the kernel gives to programs that ask for any port (ip_local_port_range, from 32768
// on), so that no such program takes a port between the check that it is free and the time when the test's program
// listens.
const (
	first = 20_000
	last  = 32_000
)

var (
	mu    sync.Mutex
	given = map[int]bool{}
)

// Free returns an address of 127.0.0.1, as host:port, at which no process listens. It returns each address only once.
func Free(t testing.TB) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	for range 1000 {
		n := first + rand.IntN(last-first)
		if given[n] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(n)))
		if err != nil {
			continue
		}
		l.Close()
		given[n] = true
		return l.Addr().String()
	}
	t.Fatal("there is no free port")
	return ""
}

// Number returns the port number of an address.
func Number(t testing.TB, address string) int {
	t.Helper()
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return int(at.Port())
}
