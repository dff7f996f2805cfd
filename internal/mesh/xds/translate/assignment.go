package translate

import (
	"math"
	"net/netip"
	"unicode/utf8"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/mesh"
)

// Assignment is the endpoints of one service.
type Assignment struct {
	Name       string
	Localities []mesh.Locality
}

// maxPriority is the highest that the protocol lets a locality have.
const maxPriority = 128

// overprovisioning is the one factor that the mesh has (per cent); it is also the protocol's default.
const overprovisioning = 140

// ParseAssignment reads a ClusterLoadAssignment. Endpoints come most often and most at a time, so that what is common
// goes through a decoder of its own; whatever that does not know is left to the generated one, which alone refuses.
func ParseAssignment(b []byte) (Assignment, error) {
	if a, ok := quickAssignment(b); ok {
		return a, nil
	}
	if _, err := Weigh(assignmentURL, b); err != nil {
		return Assignment{}, Refused("endpoints", Name(b), err)
	}
	return slowAssignment(b)
}

const assignmentURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// Bytes is how much memory an assignment takes.
func (a *Assignment) Bytes() int {
	n := len(a.Name) + cap(a.Localities)*int(unsafe.Sizeof(mesh.Locality{}))
	for i := range a.Localities {
		l := &a.Localities[i]
		n += len(l.Region) + len(l.Zone) + len(l.SubZone) + cap(l.Endpoints)*int(unsafe.Sizeof(mesh.Endpoint{}))
	}
	return n
}

// slowAssignment is the reference, by the generated decoder.
func slowAssignment(b []byte) (Assignment, error) {
	var m endpointv3.ClusterLoadAssignment
	if err := decode(b, &m); err != nil {
		return Assignment{}, Refused("endpoints", Name(b), err)
	}
	a := Assignment{Name: m.GetClusterName()}
	var err error
	if a.Name == "" {
		err = in("cluster_name", refuse("is missing"))
	} else {
		a.Localities, _, err = localities(&m, false)
	}
	if err != nil {
		return Assignment{}, Refused("endpoints", a.Name, err)
	}
	return a, nil
}

// localities are those of an assignment. Where names are allowed, hosts has for each endpoint its name; an endpoint
// with a name has an address without IP.
func localities(m *endpointv3.ClusterLoadAssignment, names bool) (out []mesh.Locality, hosts [][]string, err error) {
	if err := only(m, "cluster_name", "endpoints", "policy"); err != nil {
		return nil, nil, err
	}
	if p := m.GetPolicy(); p != nil {
		if err := only(p, "overprovisioning_factor"); err != nil {
			return nil, nil, in("policy", err)
		}
		if f := p.GetOverprovisioningFactor(); f != nil && f.GetValue() != overprovisioning {
			return nil, nil, in("policy", in("overprovisioning_factor",
				refuse("must be %d, not %d", overprovisioning, f.GetValue())))
		}
	}
	total := uint64(0)
	for i, from := range m.GetEndpoints() {
		var l mesh.Locality
		named, err := locality(from, &l, names)
		if err != nil {
			return nil, nil, in("endpoints", item(i, err))
		}
		if total += uint64(l.Weight); total > math.MaxUint32 {
			return nil, nil, in("endpoints", refuse("the weights of all localities are too much for 32 bits"))
		}
		if len(l.Endpoints) == 0 {
			continue // it serves nothing, and takes 40 times the memory of its two bytes
		}
		out = append(out, l)
		if names {
			hosts = append(hosts, named)
		}
	}
	return out, hosts, nil
}

func locality(m *endpointv3.LocalityLbEndpoints, l *mesh.Locality, names bool) (hosts []string, err error) {
	if err := only(m, "locality", "metadata", "lb_endpoints", "load_balancing_weight", "priority",
		"proximity"); err != nil {
		return nil, err
	}
	if p := m.GetLocality(); p != nil {
		if err := only(p, "region", "zone", "sub_zone"); err != nil {
			return nil, in("locality", err)
		}
	}
	l.Region, l.Zone, l.SubZone = m.GetLocality().GetRegion(), m.GetLocality().GetZone(), m.GetLocality().GetSubZone()
	if l.Priority = m.GetPriority(); l.Priority > maxPriority {
		return nil, in("priority", refuse("must be at most %d, not %d", maxPriority, l.Priority))
	}
	if l.Weight, err = weight(m.GetLoadBalancingWeight(), 0); err != nil {
		return nil, err
	}
	if len(m.GetLbEndpoints()) > 0 {
		l.Endpoints = make([]mesh.Endpoint, len(m.GetLbEndpoints()))
	}
	total := uint64(0)
	for i, from := range m.GetLbEndpoints() {
		host, err := endpoint(from, &l.Endpoints[i], names)
		if err != nil {
			return nil, in("lb_endpoints", item(i, err))
		}
		if names {
			hosts = append(hosts, host)
		}
		if total += uint64(l.Endpoints[i].Weight); total > math.MaxUint32 {
			return nil, in("lb_endpoints", refuse("the weights of all endpoints are too much for 32 bits"))
		}
	}
	return hosts, nil
}

func weight(w *wrapperspb.UInt32Value, missing uint32) (uint32, error) {
	if w == nil {
		return missing, nil
	}
	if err := only(w, "value"); err != nil {
		return 0, in("load_balancing_weight", err)
	}
	if w.GetValue() == 0 {
		return 0, in("load_balancing_weight", refuse("must be 1 or more"))
	}
	return w.GetValue(), nil
}

func endpoint(m *endpointv3.LbEndpoint, e *mesh.Endpoint, names bool) (host string, err error) {
	if err := only(m, "endpoint", "health_status", "metadata", "load_balancing_weight"); err != nil {
		return "", err
	}
	if m.GetEndpoint() == nil {
		return "", in("endpoint", refuse("is missing"))
	}
	if err := only(m.GetEndpoint(), "address", "health_check_config", "hostname", "observability_name"); err != nil {
		return "", in("endpoint", err)
	}
	host, port, _, err := hostPort(m.GetEndpoint().GetAddress())
	if err != nil {
		return "", in("endpoint", in("address", err))
	}
	ip, err := parseIP(host)
	switch {
	case err == nil && reachable(ip):
		e.Address, host = netip.AddrPortFrom(ip, port), ""
	case err == nil:
		err = refuse("%q is no address to connect to", clip(host))
	case names:
		if err = hostName(host); err == nil {
			e.Address = netip.AddrPortFrom(netip.Addr{}, port)
		}
	}
	if err != nil {
		return "", in("endpoint", in("address", in("socket_address", in("address", err))))
	}
	if e.Weight, err = weight(m.GetLoadBalancingWeight(), 1); err != nil {
		return "", err
	}
	var ok bool
	if e.Health, ok = health(m.GetHealthStatus()); !ok {
		return "", in("health_status", refuse("%s is not supported", m.GetHealthStatus()))
	}
	return host, nil
}

// reachable says whether connections can be made to an address.
func reachable(ip netip.Addr) bool { return !ip.IsUnspecified() && !ip.IsMulticast() }

// hostName says what is wrong with the name of a host.
func hostName(s string) error {
	if s == "" || len(s) > 253 {
		return refuse("a host name has 1 to 253 letters, not %d", len(s))
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_') {
			return refuse("%q is no host name", s)
		}
	}
	return nil
}

// health is a health status. Those of active checks come down to unhealthy; a degraded endpoint is to serve only when
// others cannot, which the mesh does not know.
func health(s corev3.HealthStatus) (mesh.Health, bool) {
	switch s {
	case corev3.HealthStatus_UNKNOWN:
		return mesh.Unknown, true
	case corev3.HealthStatus_HEALTHY:
		return mesh.Healthy, true
	case corev3.HealthStatus_UNHEALTHY, corev3.HealthStatus_TIMEOUT:
		return mesh.Unhealthy, true
	case corev3.HealthStatus_DRAINING:
		return mesh.Draining, true
	}
	return 0, false
}

// quickAssignment decodes what is common: it says no to whatever it does not know, to what comes twice though it may be
// there only once, and to all that may have to be refused. What it takes, it takes as slowAssignment does.
func quickAssignment(b []byte) (a Assignment, ok bool) {
	n := count(b, 2)
	if n < 0 {
		return a, false
	}
	total := uint64(0)
	for len(b) > 0 {
		tag, value, rest, ok := next(b)
		if !ok {
			return a, false
		}
		b = rest
		switch tag {
		case 1<<3 | bytesType:
			if !utf8.Valid(value) {
				return a, false
			}
			a.Name = string(value)
		case 2<<3 | bytesType:
			var l mesh.Locality
			if !quickLocality(value, &l) {
				return a, false
			}
			if total += uint64(l.Weight); total > math.MaxUint32 {
				return a, false
			}
			if len(l.Endpoints) == 0 {
				continue
			}
			if a.Localities == nil {
				a.Localities = make([]mesh.Locality, 0, min(n, 16)) // what is usual; a count that lies costs nothing
			}
			a.Localities = append(a.Localities, l)
		default:
			return a, false
		}
	}
	return a, a.Name != ""
}

func quickLocality(b []byte, l *mesh.Locality) bool {
	n := count(b, 2)
	if n < 0 {
		return false
	}
	if n > 0 {
		l.Endpoints = make([]mesh.Endpoint, 0, n)
	}
	placed, total := false, uint64(0)
	for len(b) > 0 {
		if b[0] == 5<<3|varintType {
			v, n := varint(b[1:])
			if n <= 0 || uint32(v) > maxPriority {
				return false
			}
			l.Priority, b = uint32(v), b[1+n:]
			continue
		}
		tag, value, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case 1<<3 | bytesType:
			if placed || !quickPlace(value, l) {
				return false
			}
			placed = true
		case 2<<3 | bytesType:
			l.Endpoints = append(l.Endpoints, mesh.Endpoint{})
			e := &l.Endpoints[len(l.Endpoints)-1]
			if !quickEndpoint(value, e) {
				return false
			}
			if total += uint64(e.Weight); total > math.MaxUint32 {
				return false
			}
		case 3<<3 | bytesType:
			if l.Weight != 0 || !quickWeight(value, &l.Weight) {
				return false
			}
		case 9<<3 | bytesType:
			if !isMetadata(value) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func quickPlace(b []byte, l *mesh.Locality) bool {
	for len(b) > 0 {
		tag, value, rest, ok := next(b)
		if !ok || !utf8.Valid(value) {
			return false
		}
		b = rest
		switch tag {
		case 1<<3 | bytesType:
			l.Region = string(value)
		case 2<<3 | bytesType:
			l.Zone = string(value)
		case 3<<3 | bytesType:
			l.SubZone = string(value)
		default:
			return false
		}
	}
	return true
}

func quickEndpoint(b []byte, e *mesh.Endpoint) bool {
	if plainEndpoint(b, e) {
		return true
	}
	for len(b) > 0 {
		if b[0] == 2<<3|varintType {
			v, n := varint(b[1:])
			if n <= 0 {
				return false
			}
			h, ok := health(corev3.HealthStatus(int32(v)))
			if !ok {
				return false
			}
			e.Health, b = h, b[1+n:]
			continue
		}
		tag, value, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case 1<<3 | bytesType:
			if e.Address.IsValid() || !quickHost(value, e) {
				return false
			}
		case 3<<3 | bytesType:
			if !isMetadata(value) {
				return false
			}
		case 4<<3 | bytesType:
			if e.Weight != 0 || !quickWeight(value, &e.Weight) {
				return false
			}
		default:
			return false
		}
	}
	if e.Weight == 0 {
		e.Weight = 1
	}
	return e.Address.IsValid()
}

// plainEndpoint reads an endpoint that is an IPv4 address and a port and nothing else, written as everybody writes it:
// most of them are.
func plainEndpoint(b []byte, e *mesh.Endpoint) bool {
	const deep = 8 // four tags with lengths: LbEndpoint, Endpoint, Address, and the address of SocketAddress
	if len(b) < deep+4 || len(b) > 127 {
		return false
	}
	for at := 0; at < deep-2; at += 2 {
		if b[at] != 1<<3|bytesType || int(b[at+1]) != len(b)-at-2 {
			return false
		}
	}
	end := deep + int(b[deep-1])
	if b[deep-2] != 2<<3|bytesType || end+2 > len(b) || b[end] != 3<<3|varintType {
		return false
	}
	port, n := varint(b[end+1:])
	if n <= 0 || end+1+n != len(b) || port == 0 || port > 65535 {
		return false
	}
	ip, ok := quickIP(b[deep:end])
	if !ok {
		return false
	}
	*e = mesh.Endpoint{Address: netip.AddrPortFrom(ip, uint16(port)), Weight: 1}
	return true
}

// quickHost reads an Endpoint.
func quickHost(b []byte, e *mesh.Endpoint) bool {
	for len(b) > 0 {
		tag, value, rest, ok := next(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case 1<<3 | bytesType:
			tag, socket, rest, ok := next(value) // an Address with nothing but its socket address
			if !ok || tag != 1<<3|bytesType || len(rest) > 0 || e.Address.IsValid() || !quickSocket(socket, e) {
				return false
			}
		case 3<<3 | bytesType: // host name: has no effect
			if !utf8.Valid(value) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func quickSocket(b []byte, e *mesh.Endpoint) bool {
	var ip netip.Addr
	var port uint32
	for len(b) > 0 {
		switch b[0] {
		case 1<<3 | varintType:
			v, n := varint(b[1:])
			if n <= 0 || uint32(v) > 1 {
				return false
			}
			b = b[1+n:]
			continue
		case 3<<3 | varintType:
			v, n := varint(b[1:])
			if n <= 0 {
				return false
			}
			port, b = uint32(v), b[1+n:]
			continue
		}
		tag, value, rest, ok := next(b)
		if !ok || tag != 2<<3|bytesType {
			return false
		}
		b = rest
		if ip, ok = quickIP(value); !ok {
			return false
		}
	}
	if !ip.IsValid() || port == 0 || port > 65535 {
		return false
	}
	e.Address = netip.AddrPortFrom(ip, uint16(port))
	return true
}

// quickIP reads dotted IPv4 addresses without making a string.
func quickIP(b []byte) (netip.Addr, bool) {
	var out [4]byte
	field, digits, v := 0, 0, 0
	for i := 0; ; i++ {
		if i == len(b) || b[i] == '.' {
			if digits == 0 || field > 3 {
				break
			}
			out[field] = byte(v)
			field, digits, v = field+1, 0, 0
			if i == len(b) && field == 4 {
				ip := netip.AddrFrom4(out)
				return ip, reachable(ip)
			}
			if i == len(b) {
				break
			}
			continue
		}
		c := b[i] - '0'
		if c > 9 || digits > 0 && v == 0 {
			break
		}
		if v, digits = v*10+int(c), digits+1; v > 255 {
			break
		}
	}
	ip, err := netip.ParseAddr(string(b))
	if err != nil || ip.Zone() != "" {
		return ip, false
	}
	ip = ip.Unmap()
	return ip, reachable(ip)
}

// quickWeight reads a UInt32Value that is not 0.
func quickWeight(b []byte, w *uint32) bool {
	if len(b) < 2 || b[0] != 1<<3|varintType {
		return false
	}
	v, n := varint(b[1:])
	*w = uint32(v)
	return n > 0 && 1+n == len(b) && *w != 0
}

// isMetadata says whether b is metadata, which has no effect, but must be what it says.
func isMetadata(b []byte) bool {
	var m corev3.Metadata
	return proto.Unmarshal(b, &m) == nil
}

// The wire types that these messages use; without a Go type, since tags are bytes here and numbers there.
const (
	varintType = 0
	bytesType  = 2
)

// next takes one field with a length off b. Tags of more than one byte, and other types, are for the generated decoder.
func next(b []byte) (tag uint64, value, rest []byte, ok bool) {
	if len(b) == 0 || b[0] >= 0x80 || b[0]&7 != bytesType || b[0]>>3 == 0 {
		return 0, nil, nil, false
	}
	size, n := varint(b[1:])
	if n <= 0 || size > uint64(len(b)-1-n) {
		return 0, nil, nil, false
	}
	end := 1 + n + int(size)
	return uint64(b[0]), b[1+n : end], b[end:], true
}

// varint reads a varint; n is below 1 where there is none.
func varint(b []byte) (v uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// count is how many fields of a number b has, which are of the type with a length; below 0 where b is not of fields
// that next and varint take.
func count(b []byte, number byte) (n int) {
	for len(b) > 0 {
		if b[0] < 0x80 && b[0]&7 == varintType && b[0]>>3 > 0 {
			_, size := varint(b[1:])
			if size <= 0 {
				return -1
			}
			b = b[1+size:]
			continue
		}
		tag, _, rest, ok := next(b)
		if !ok {
			return -1
		}
		if byte(tag>>3) == number {
			n++
		}
		b = rest
	}
	return n
}
