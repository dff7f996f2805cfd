// Package mesh models the configuration of a service mesh for data planes that work at connection level (layer 4). The
// model is decoded, checked, and independent of the protocol that delivered it. Every store (package store) takes the
// model as input, and must answer lookups as the model defines. The package does no I/O.
package mesh

import (
	"fmt"
	"net/netip"
	"time"
)

// Protocol is the transport protocol of a listener, as an IP protocol number.
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

// Policy determines how a cluster's endpoints are chosen.
type Policy uint8

// The policies. Callers choose endpoints independently of each other, so both policies choose at random by weight:
// RoundRobin yields the right shares, but guarantees no order.
const (
	RoundRobin Policy = iota
	Random
)

// Cluster is a set of interchangeable endpoints. It is always replaced as a whole.
type Cluster struct {
	Name           string
	Policy         Policy
	ConnectTimeout time.Duration
	Breakers       Breakers
	Localities     []Locality
}

// Breakers are the circuit breaker limits of a cluster; 0 means no limit. A data plane at connection level can enforce
// MaxConnections only; the other limits are stored but have no effect.
type Breakers struct {
	MaxConnections, MaxPending, MaxRequests, MaxRetries uint32
}

// Locality holds the endpoints in one location.
type Locality struct {
	Region, Zone, SubZone string
	Priority              uint32 // 0 is used first
	Weight                uint32 // relative to the other localities of its priority; 0 if localities have no weights
	Endpoints             []Endpoint
}

// Endpoint is an address that serves connections of a cluster.
type Endpoint struct {
	Address netip.AddrPort
	Weight  uint32 // relative to the other endpoints of its locality; 0: it gets no new connections
	Health  Health
}

// Health determines whether an endpoint may be used.
type Health uint8

// The health states. Unknown counts as healthy, as in xDS. A draining endpoint gets no new connections.
const (
	Unknown Health = iota
	Healthy
	Unhealthy
	Draining
)

// Usable reports whether the endpoint may take a new connection.
func (e Endpoint) Usable() bool { return e.Weight > 0 && e.Health <= Healthy }

// Listener holds an address that the mesh serves, and determines where its connections go.
type Listener struct {
	Name     string
	Address  netip.AddrPort // the unspecified IP stands for every address of its family
	Protocol Protocol
	Chains   []Chain
	Default  *Chain // for connections that no chain matches; nil: they are refused
}

// Chain determines what happens to the connections that match it.
type Chain struct {
	Name  string
	Match Match
	RBAC  []RBAC // all of them must let a connection pass
	Proxy Proxy
}

// Match selects the connections that a chain handles. An empty field matches every connection.
type Match struct {
	DestinationPort uint16 // 0: any
	Destinations    []netip.Prefix
	Sources         []netip.Prefix
	SourcePorts     []uint16
}

// RBAC allows or denies connections by their addresses (Envoy's network RBAC filter, restricted to layer 4).
type RBAC struct {
	Deny     bool // deny the connections that a policy matches; if false, allow only those
	Policies []Principal
}

// Principal is one policy. It matches a connection that every list matches; an empty list matches every connection.
type Principal struct {
	Name             string
	Sources          []netip.Prefix
	Destinations     []netip.Prefix
	SourcePorts      []PortRange
	DestinationPorts []PortRange
}

// PortRange is the ports From to To, inclusive; the zero value matches any port.
type PortRange struct{ From, To uint16 }

// Proxy lists the clusters among which connections are divided by weight.
type Proxy struct {
	StatPrefix         string
	Clusters           []WeightedCluster
	MaxConnectAttempts uint32
}

// WeightedCluster names a cluster and gives its share of connections, relative to the sum of all weights.
type WeightedCluster struct {
	Name   string
	Weight uint32
}
