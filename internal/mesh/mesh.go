// Package mesh is a service mesh's configuration as a data plane at connection level needs it: decoded and checked,
// and independent of the protocol that it came by. It is the input of every store, and defines what a store must
// answer. It is pure.
package mesh

import (
	"fmt"
	"net/netip"
	"time"
)

// Protocol is the transport of a listener, by its IP protocol number.
type Protocol uint8

// The protocols that a listener can have.
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

// Policy is how a cluster's endpoints are chosen.
type Policy uint8

// The policies. At connection level with independent callers both are a random choice by weight: the shares are the
// same, the order is not guaranteed.
const (
	RoundRobin Policy = iota
	Random
)

// Cluster is a set of endpoints that serve the same. It is always replaced as a whole.
type Cluster struct {
	Name           string
	Policy         Policy
	ConnectTimeout time.Duration
	Breakers       Breakers
	Localities     []Locality
}

// Breakers are the limits of a cluster; 0: none. At connection level only MaxConnections can be enforced; the others
// are just kept.
type Breakers struct {
	MaxConnections, MaxPending, MaxRequests, MaxRetries uint32
}

// Locality is the endpoints in one location.
type Locality struct {
	Region, Zone, SubZone string
	Priority              uint32 // 0 is used first
	Weight                uint32 // its share among the localities of its priority; 0 if localities have no weights
	Endpoints             []Endpoint
}

// Endpoint is an address that serves.
type Endpoint struct {
	Address netip.AddrPort
	Weight  uint32 // relative to the other endpoints of its locality; 0: it gets no new connections
	Health  Health
}

// Health is whether an endpoint may be used.
type Health uint8

// The health states. Unknown counts as healthy, as in xDS. A draining endpoint gets no new connections.
const (
	Unknown Health = iota
	Healthy
	Unhealthy
	Draining
)

// Usable says whether the endpoint may take a new connection.
func (e Endpoint) Usable() bool { return e.Weight > 0 && e.Health <= Healthy }

// Listener is an address that the mesh serves, and where its connections go.
type Listener struct {
	Name     string
	Address  netip.AddrPort // the unspecified IP stands for every address of its family
	Protocol Protocol
	Chains   []Chain
	Default  *Chain // for connections that no chain matches; nil: they are refused
}

// Chain is what happens to the connections that it matches.
type Chain struct {
	Name  string
	Match Match
	RBAC  []RBAC // all of them must let a connection pass
	Proxy Proxy
}

// Match says which connections a chain is for. An empty field matches all.
type Match struct {
	DestinationPort uint16 // 0: any
	Destinations    []netip.Prefix
	Sources         []netip.Prefix
	SourcePorts     []uint16
}

// RBAC allows or denies connections by their addresses (network.rbac of Envoy, for layer 4).
type RBAC struct {
	Deny     bool // connections that a policy matches are denied; otherwise only those are allowed
	Policies []Principal
}

// Principal is one policy: all of its conditions must hold, and an empty one holds.
type Principal struct {
	Name             string
	Sources          []netip.Prefix
	Destinations     []netip.Prefix
	SourcePorts      []PortRange
	DestinationPorts []PortRange
}

// PortRange is From to To, both included; the zero value is any port.
type PortRange struct{ From, To uint16 }

// Proxy is the clusters that connections go to, by weight.
type Proxy struct {
	StatPrefix         string
	Clusters           []WeightedCluster
	MaxConnectAttempts uint32
}

// WeightedCluster is a cluster by its name, and its share relative to the sum of all.
type WeightedCluster struct {
	Name   string
	Weight uint32
}
