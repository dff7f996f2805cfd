package kernelmesh

import (
	"fmt"
	"math/bits"
	"net/netip"
)

// Protocol is the transport of a service, by its IP protocol number.
type Protocol uint8

// The protocols that a service can have.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// Service is an address and what stands behind it.
type Service struct {
	Address   netip.AddrPort
	Protocol  Protocol
	Endpoints []Endpoint // none: connections to the service are refused
}

func (s Service) String() string { return s.Protocol.String() + " " + s.Address.String() }

// Endpoint is one place that serves a service.
type Endpoint struct {
	Address netip.AddrPort
	Weight  uint32 // its share of new connections, relative to the sum of the service's weights; 0: none
}

// Limits of one service. They come from the layout of a table word (bpf/kernelmesh.c).
const (
	MaxServiceEndpoints = 1<<16 - 1
	MaxWeight           = 1_000_000
)

// canonical is the form of an address in which equal addresses compare equal.
func canonical(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// checkAddress says what is wrong with an address of a service or an endpoint, if anything.
func checkAddress(a netip.AddrPort) error {
	switch ip := a.Addr(); {
	case !ip.IsValid():
		return fmt.Errorf("the address is missing")
	case ip.Zone() != "":
		return fmt.Errorf("address %s has a zone: link-local addresses cannot be used", a)
	case ip.Unmap().IsUnspecified():
		return fmt.Errorf("address %s is the unspecified address", a)
	case ip.Unmap().IsMulticast():
		return fmt.Errorf("address %s is a multicast address", a)
	case a.Port() == 0:
		return fmt.Errorf("port 0 of %s is out of range (1 to 65535)", a)
	}
	return nil
}

// checkEndpoint says what is wrong with an endpoint of s, if anything.
func (s Service) checkEndpoint(e Endpoint) error {
	if err := checkAddress(e.Address); err != nil {
		return err
	}
	// An AF_INET socket cannot connect to IPv6, and for UDP the kernel refuses to turn IPv6 into IPv4.
	if s.Address.Addr().Unmap().Is4() != e.Address.Addr().Unmap().Is4() {
		return fmt.Errorf("endpoint %s is of another address family than its service %s", e.Address, s.Address)
	}
	if e.Weight > MaxWeight {
		return fmt.Errorf("weight %d of endpoint %s is out of range (0 to %d)", e.Weight, e.Address, MaxWeight)
	}
	return nil
}

// checkEndpoints says what is wrong with the endpoints of s taken together, if anything.
func (s Service) checkEndpoints() error {
	if len(s.Endpoints) > MaxServiceEndpoints {
		return fmt.Errorf("service %s has %d endpoints; it can have %d", s, len(s.Endpoints), MaxServiceEndpoints)
	}
	total := uint64(0)
	for _, e := range s.Endpoints {
		total += uint64(e.Weight)
	}
	if len(s.Endpoints) > 0 && total == 0 {
		return fmt.Errorf("the weights of service %s are all 0", s)
	}
	return nil
}

// check says what is wrong with s, if anything.
func (s Service) check() error {
	if s.Protocol != TCP && s.Protocol != UDP {
		return fmt.Errorf("service %s has protocol %s; it can be tcp or udp", s.Address, s.Protocol)
	}
	if err := checkAddress(s.Address); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	seen := make(map[netip.AddrPort]bool, len(s.Endpoints))
	for _, e := range s.Endpoints {
		if err := s.checkEndpoint(e); err != nil {
			return err
		}
		if a := canonical(e.Address); seen[a] {
			return fmt.Errorf("endpoint %s of service %s is given twice", e.Address, s)
		}
		seen[canonical(e.Address)] = true
	}
	return s.checkEndpoints()
}

// aliasTable makes the slots that choose among ids by weight in constant time, one slot for each weight above 0. In each slot own takes
// threshold/2^32 of it and alias the rest (M. D. Vose, IEEE Transactions on Software Engineering 17(9), 1991). The arithmetic is
// exact but for the last division: a share is off by at most 2^-32 of a slot.
func aliasTable(ids, weights []uint32) []kernelmeshSlot {
	var slots []kernelmeshSlot
	var mass []uint64 // weight of what is still to be placed in the slot, in units of 1/(n x total)
	total := uint64(0)
	for i, w := range weights {
		if w > 0 {
			slots = append(slots, kernelmeshSlot{Threshold: 1<<32 - 1, Own: ids[i], Alias: ids[i]})
			mass = append(mass, uint64(w))
			total += uint64(w)
		}
	}
	var under, over []int
	for i := range mass {
		mass[i] *= uint64(len(slots)) // below 2^36: MaxWeight x MaxServiceEndpoints
		if mass[i] < total {
			under = append(under, i)
		} else {
			over = append(over, i)
		}
	}
	for len(under) > 0 && len(over) > 0 {
		u, o := under[len(under)-1], over[len(over)-1]
		under = under[:len(under)-1]
		threshold, _ := bits.Div64(mass[u], 0, total) // mass x 2^64 / total, of which the upper half is wanted
		slots[u].Threshold = uint32(threshold >> 32)
		slots[u].Alias = slots[o].Own
		mass[o] -= total - mass[u]
		if mass[o] < total {
			over = over[:len(over)-1]
			under = append(under, o)
		}
	}
	return slots
}
