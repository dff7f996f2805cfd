package kernelmesh

import (
	"fmt"
	"net/netip"

	"tare/internal/mesh"
)

// Protocol is the transport protocol of a service, as an IP protocol number.
type Protocol = mesh.Protocol

// The protocols that a service can have.
const (
	TCP = mesh.TCP
	UDP = mesh.UDP
)

// Service is an address and its endpoints.
type Service struct {
	Address   netip.AddrPort
	Protocol  Protocol
	Endpoints []Endpoint // if empty, connections to the service are refused
}

// String returns the protocol and the address in canonical form, so that equal services have the same name.
func (s Service) String() string { return s.Protocol.String() + " " + canonical(s.Address).String() }

// Endpoint is an address that serves a service.
type Endpoint struct {
	Address netip.AddrPort
	Weight  uint32 // its share of new connections, relative to the sum of the service's weights
}

// Limits of one service. Some stores have lower limits.
const (
	MaxServiceEndpoints = 1<<16 - 1
	MaxWeight           = 1_000_000
)

// canonical returns an address in the form in which equal addresses compare equal.
func canonical(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// checkAddress returns an error if an address of a service or an endpoint is invalid.
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

// checkEndpoint returns an error if an endpoint of s is invalid.
func (s Service) checkEndpoint(e Endpoint) error {
	if err := checkAddress(e.Address); err != nil {
		return err
	}
	// An AF_INET socket cannot connect to IPv6, and for UDP the kernel does not allow IPv6 to be rewritten to IPv4.
	if s.Address.Addr().Unmap().Is4() != e.Address.Addr().Unmap().Is4() {
		return fmt.Errorf("endpoint %s is of another address family than its service %s", e.Address, s.Address)
	}
	if e.Weight > MaxWeight {
		return fmt.Errorf("weight %d of endpoint %s is out of range (0 to %d)", e.Weight, e.Address, MaxWeight)
	}
	return nil
}

// checkEndpoints returns an error if the endpoints of s are invalid together.
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

// check returns an error if s is invalid.
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
