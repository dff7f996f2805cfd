// Package generation links a process that replaces configuration as fast as it can (the replacer) with a load that
// makes connections meanwhile. They share the services whose configuration is replaced, endpoints that encode the set
// to which they belong, and a page of memory from which the load learns which sets a connection may find.
//
// The sets of endpoints are numbered: generation 0 is the first, and each change makes the next. The replacer writes
// to the page when a change begins and when it has returned. A process that reads Done before connecting and Begun
// afterwards knows that the connection must have found a generation from Done to Begun: older ones were already gone,
// and newer ones did not exist yet.
package generation

import "net/netip"

// Services is the number of services that are replaced. The first keeps its cluster, which gets new endpoints; the
// listener of the second moves to another cluster in each generation, and the previous cluster is removed.
const Services = 2

// Most is the maximum number of endpoints of a set. Sets have 1 to Most endpoints, to detect a lookup that uses the
// size of one set with the endpoints of another.
const Most = 4

// Addresses are in 127.0.0.0/8, so that sockets can be connected and their destinations read. Nothing listens there;
// connecting a UDP socket sends nothing.
const (
	servicePrefix  = 127<<24 | 64<<16  // 127.64.0.0, plus the number of the service, from 1
	endpointPrefix = 127<<24 | 128<<16 // 127.128.0.0/10, plus the bits below
	servicePort    = 80

	lowBits      = 19 // number of bits of the generation in an IP address
	indexShift   = lowBits
	serviceShift = lowBits + 2
	prefixMask   = ^uint32(1<<(serviceShift+1) - 1)
)

// Service returns the address of the i-th service, from 0: its IPv4 address as a number, and the port.
func Service(i int) (ip uint32, port uint16) { return servicePrefix + 1 + uint32(i), servicePort }

// Size returns the number of endpoints of a service in a generation.
func Size(g uint64) int { return 1 + int(g%Most) }

// Endpoint returns the i-th endpoint, from 0, of a service in a generation. It encodes the generation twice: its low
// bits in the IP address, and a hash of all its bits in the port. An IP address of one generation with the port of
// another is therefore detected in all but one of 65,535 cases.
func Endpoint(service int, g uint64, i int) (ip uint32, port uint16) {
	low := uint32(g & (1<<lowBits - 1))
	return endpointPrefix | uint32(service)<<serviceShift | uint32(i)<<indexShift | low, portOf(service, g, i)
}

// portOf returns a hash of its arguments, from 1 to 65,535: the output function of splitmix64.
func portOf(service int, g uint64, i int) uint16 {
	x := (g*Most+uint64(i))*Services + uint64(service)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return uint16((x^x>>31)%65535 + 1)
}

// AddrPort converts an IPv4 address and a port to a netip.AddrPort.
func AddrPort(ip uint32, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}), port)
}

// Verdict is a judgement of a connection's endpoint.
type Verdict uint8

// The verdicts. All but Right mean that the endpoint is in neither the old nor the new set.
const (
	Right  Verdict = iota // in a set that may have existed at some moment of the connection
	Stale                 // in a set that was gone before the connection began
	Torn                  // in no set that the service ever had: a mix of two, or another service's
	Missed                // the service's own address: the connection bypassed the mesh
)

// Judge judges the endpoint of a connection to a service. done is the result of Page.Done before the connection, and
// begun the result of Page.Begun after it. g is the endpoint's generation if the verdict is Right or Stale, else 0. An
// endpoint that is 2^19 or more generations older than begun counts as Torn.
func Judge(service int, ip uint32, port uint16, done, begun uint64) (v Verdict, g uint64) {
	if sip, sport := Service(service); ip == sip && port == sport {
		return Missed, 0
	}
	if ip&prefixMask != endpointPrefix || int(ip>>serviceShift&1) != service {
		return Torn, 0
	}
	behind := (begun - uint64(ip)) & (1<<lowBits - 1) // generations before the latest possible one
	i := int(ip >> indexShift & (Most - 1))
	if g = begun - behind; behind > begun || i >= Size(g) || port != portOf(service, g, i) {
		return Torn, 0
	}
	if g < done {
		return Stale, g
	}
	return Right, g
}

// The names of counts and histograms in the results of replacers and loads.
const (
	// The replacer counts the changes that began in the window and their total time in seconds, and records the histogram
	// of their times.
	Replacements       = "replacements"
	ReplacementSeconds = "replacement_seconds"
	ReplacementTime    = "replacement"

	// The load counts the connections that it attempted, how many of them failed, and how many of the others got each kind
	// of endpoint.
	Judged        = "judged" // attempted, so failed connections are included
	FailedCount   = "failed"
	StaleCount    = "stale"
	TornCount     = "torn"
	MissedCount   = "missed"
	BackwardCount = "backward" // Right, but of an older generation than the endpoint of an earlier connection

	// OldEndpoint is a histogram of how long connections still got old endpoints after a change had begun. It has a value
	// for each change for which that happened: the time from the beginning of the change to the beginning of the last such
	// connection.
	OldEndpoint = "old_endpoint"
)
