// Package storetest tests and weighs every store: one suite, one benchmark, the same work for all designs.
package storetest

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/store/storeload"
)

// Asker and Answer are storeload's.
type (
	Asker  = storeload.Asker
	Answer = storeload.Answer
)

// NewAsker loads the design's program with the maps of s, for as long as the test runs.
func NewAsker(t testing.TB, d store.Design, s store.Store) *Asker {
	t.Helper()
	a, err := storeload.LoadAsk(d, s.Maps())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// ClusterLoad is storeload's: the cluster of the cluster benchmark of Kmesh's map update proposal.
func ClusterLoad(i int) *mesh.Cluster { return storeload.ClusterLoad(i) }

// ClusterName is the name of ClusterLoad(i).
func ClusterName(i int) string { return storeload.ClusterName(i) }

// ListenerLoad is storeload's: the listener of the listener benchmark of the same proposal.
func ListenerLoad(i int) *mesh.Listener { return storeload.ListenerLoad(i) }

// ServiceAddress is the address of ListenerLoad(i).
func ServiceAddress(i int) netip.AddrPort { return storeload.ServiceAddress(i) }

// nth returns the IPv4 address that is i above first.
func nth(first uint32, i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], first+uint32(i))
	return netip.AddrFrom4(b)
}
