// Package generation is what one who replaces configuration as fast as it goes and one who connects meanwhile know of
// each other: the services that are replaced, endpoints that say of which set they are, and a page of memory that tells
// which sets there can be at a moment.
//
// The sets of endpoints are numbered: generation 0 is there at first, and each change brings the next. The replacer
// says in the page when a change begins and when it has returned. Whoever reads Done before connecting and Begun after
// it knows that the connection must have found a generation from the one to the other: what is older was gone before,
// what is newer was not there yet.
package generation

import "net/netip"

// Services is how many services are replaced. The first keeps its cluster, which gets new endpoints; the listener of
// the second goes to another cluster with each generation, and the one before is removed.
const Services = 2

// Most is the most endpoints of a set. Sets are of 1 to Most endpoints, so that a number of one beside the endpoints of
// another shows.
const Most = 4

// Addresses are in 127.0.0.0/8, so that a connection can be made wherever it is sent, and where it came to can be told.
// Nobody listens there; a UDP socket that connects sends nothing.
const (
	servicePrefix  = 127<<24 | 64<<16  // and the number of the service, from 1
	endpointPrefix = 127<<24 | 128<<16 // 127.128.0.0/10, and the bits below
	servicePort    = 80

	lowBits      = 19 // of the generation
	indexShift   = lowBits
	serviceShift = lowBits + 2
	prefixMask   = ^uint32(1<<(serviceShift+1) - 1)
)

// Service is the address of the i-th service, from 0: its IPv4 address as a number, and the port.
func Service(i int) (ip uint32, port uint16) { return servicePrefix + 1 + uint32(i), servicePort }

// Size is how many endpoints a service has in a generation.
func Size(g uint64) int { return 1 + int(g%Most) }

// Endpoint is the i-th endpoint of a service in a generation. Its generation is in it twice: the low bits in the IP, a
// hash of all in the port. An IP of one generation with the port of another so shows, but for one in 65,535.
func Endpoint(service int, g uint64, i int) (ip uint32, port uint16) {
	low := uint32(g & (1<<lowBits - 1))
	return endpointPrefix | uint32(service)<<serviceShift | uint32(i)<<indexShift | low, portOf(service, g, i)
}

// portOf is never 0. The multiplier is that of splitmix64's last step.
func portOf(service int, g uint64, i int) uint16 {
	x := (g*Most+uint64(i))*Services + uint64(service)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return uint16((x^x>>31)%65535 + 1)
}

// AddrPort is an address as everybody else has it.
func AddrPort(ip uint32, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}), port)
}

// Verdict is what an endpoint that a connection came to is.
type Verdict uint8

// The verdicts. All but Right are in neither the old nor the new set.
const (
	Right  Verdict = iota // of a set that was there at some moment of the connection
	Stale                 // of a set that was gone before the connection began
	Torn                  // of no set that the service ever had: parts of two, or another's
	Missed                // the service itself: the connection went past the mesh
)

// Judge says what the endpoint of a connection to a service is, when done was read before the connection and begun
// after it. The generation is that of the endpoint where the verdict is Right or Stale. What is older than 2^19
// generations counts as Torn.
func Judge(service int, ip uint32, port uint16, done, begun uint64) (v Verdict, g uint64) {
	if sip, sport := Service(service); ip == sip && port == sport {
		return Missed, 0
	}
	if ip&prefixMask != endpointPrefix || int(ip>>serviceShift&1) != service {
		return Torn, 0
	}
	behind := (begun - uint64(ip)) & (1<<lowBits - 1) // generations before the latest that can be
	i := int(ip >> indexShift & (Most - 1))
	if g = begun - behind; behind > begun || i >= Size(g) || port != portOf(service, g, i) {
		return Torn, 0
	}
	if g < done {
		return Stale, g
	}
	return Right, g
}

// The names of counts and histograms in the results of those who replace and those who connect.
const (
	// Of the replacer: changes that began in the window, the time that they took in seconds, and the histogram of it.
	Replacements       = "replacements"
	ReplacementSeconds = "replacement_seconds"
	ReplacementTime    = "replacement"

	// Of the load: connections that were judged, those of them that failed, and those that came to an endpoint of each
	// kind.
	Judged        = "judged"
	FailedCount   = "failed"
	StaleCount    = "stale"
	TornCount     = "torn"
	MissedCount   = "missed"
	BackwardCount = "backward" // of those that are right, and show an older generation than the connection before

	// OldEndpoint is the histogram of how long after a change began a connection began that still got an endpoint of
	// before: one value for each change of which this was seen, its last.
	OldEndpoint = "old_endpoint"
)
