package translate

import (
	"errors"
	"math"
	"net/netip"
	"unicode/utf8"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/mesh"
)

// Assignment holds the endpoints of one service.
type Assignment struct {
	Name       string
	Localities []mesh.Locality
}

// maxPriority is the highest priority of a locality that the protocol allows.
const maxPriority = 128

// overprovisioning is the only overprovisioning factor that the mesh supports, in per cent. It is also the protocol's
// default.
const overprovisioning = 140

// ParseAssignment parses a ClusterLoadAssignment. Assignments are the most frequent resources, with the most elements,
// so common ones are parsed directly from the wire format. All others go to the generated decoder, and only that path
// refuses assignments.
func ParseAssignment(b []byte) (Assignment, error) {
	if a, err := commonAssignment(b); err == nil {
		return a, nil
	}
	if _, err := Weigh(assignmentURL, b); err != nil {
		return Assignment{}, Refused("endpoints", Name(b), err)
	}
	return wholeAssignment(b)
}

const assignmentURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// wholeAssignment parses any assignment with the generated decoder.
func wholeAssignment(b []byte) (a Assignment, err error) {
	var m endpointv3.ClusterLoadAssignment
	_, err = read("endpoints", b, &m, m.GetClusterName, func(r reader) {
		a.Name = m.GetClusterName()
		r.require(a.Name != "", "cluster_name", "is missing")
		a.Localities, _ = localities(&m, false, r)
	})
	if err != nil {
		return Assignment{}, err
	}
	return a, nil
}

// Bytes returns the memory of an assignment in bytes.
func (a *Assignment) Bytes() int {
	n := len(a.Name) + cap(a.Localities)*int(unsafe.Sizeof(mesh.Locality{}))
	for i := range a.Localities {
		l := &a.Localities[i]
		n += len(l.Region) + len(l.Zone) + len(l.SubZone) + cap(l.Endpoints)*int(unsafe.Sizeof(mesh.Endpoint{}))
	}
	return n
}

// localities returns the localities of an assignment. If names is set, endpoints may have host names instead of IP
// addresses: hosts then has the host name of each endpoint, and the address of an endpoint with a host name has no IP.
func localities(m *endpointv3.ClusterLoadAssignment, names bool, r reader) (out []mesh.Locality, hosts [][]string) {
	r.only("", m, "cluster_name", "endpoints", "policy")
	r.only("policy", m.GetPolicy(), "overprovisioning_factor")
	if f := m.GetPolicy().GetOverprovisioningFactor(); f != nil {
		r.require(f.GetValue() == overprovisioning, "policy.overprovisioning_factor", "must be %d, not %d", overprovisioning,
			f.GetValue())
	}
	list := r.in("endpoints")
	total := uint64(0)
	for i, from := range m.GetEndpoints() {
		var l mesh.Locality
		named := locality(from, &l, names, list.item(i))
		total += uint64(l.Weight)
		r.require(total <= math.MaxUint32, "endpoints", "the weights of all localities are too much for 32 bits")
		if r.failed() {
			break
		}
		if len(l.Endpoints) == 0 {
			continue // it serves nothing, and would take 40 times the memory of its two bytes
		}
		out = append(out, l)
		if names {
			hosts = append(hosts, named)
		}
	}
	return out, hosts
}

func locality(m *endpointv3.LocalityLbEndpoints, l *mesh.Locality, names bool, r reader) (hosts []string) {
	r.only("", m, "locality", "metadata", "lb_endpoints", "load_balancing_weight", "priority", "proximity")
	r.only("locality", m.GetLocality(), "region", "zone", "sub_zone")
	l.Region, l.Zone, l.SubZone = m.GetLocality().GetRegion(), m.GetLocality().GetZone(), m.GetLocality().GetSubZone()
	if l.Priority = m.GetPriority(); l.Priority > maxPriority {
		r.refuse("priority", "must be at most %d, not %d", maxPriority, l.Priority)
	}
	l.Weight = r.weight(m.GetLoadBalancingWeight(), 0)
	if len(m.GetLbEndpoints()) > 0 {
		l.Endpoints = make([]mesh.Endpoint, len(m.GetLbEndpoints()))
	}
	list := r.in("lb_endpoints")
	total := uint64(0)
	for i, from := range m.GetLbEndpoints() {
		host := endpoint(from, &l.Endpoints[i], names, list.item(i))
		if names {
			hosts = append(hosts, host)
		}
		total += uint64(l.Endpoints[i].Weight)
		r.require(total <= math.MaxUint32, "lb_endpoints", "the weights of all endpoints are too much for 32 bits")
		if r.failed() {
			break
		}
	}
	return hosts
}

// weight parses the weight of a locality or an endpoint. If there is no weight, it returns the value of missing.
func (r reader) weight(w *wrapperspb.UInt32Value, missing uint32) uint32 {
	if w == nil {
		return missing
	}
	r.only("load_balancing_weight", w, "value")
	r.require(w.GetValue() != 0, "load_balancing_weight", "must be 1 or more")
	return w.GetValue()
}

func endpoint(m *endpointv3.LbEndpoint, e *mesh.Endpoint, names bool, r reader) (host string) {
	r.only("", m, "endpoint", "health_status", "metadata", "load_balancing_weight")
	r.require(m.GetEndpoint() != nil, "endpoint", "is missing")
	r.only("endpoint", m.GetEndpoint(), "address", "health_check_config", "hostname", "observability_name")
	host, port, _, err := hostPort(m.GetEndpoint().GetAddress())
	if err != nil {
		r.check("endpoint.address", err)
		return ""
	}
	ip, err := parseIP(host)
	switch {
	case err == nil && reachable(ip):
		e.Address, host = netip.AddrPortFrom(ip, port), ""
	case err == nil:
		err = refuse("%q is no address to connect to", clip(host))
	case names:
		e.Address, err = netip.AddrPortFrom(netip.Addr{}, port), hostName(host)
	}
	r.check("endpoint.address.socket_address.address", err)
	e.Weight = r.weight(m.GetLoadBalancingWeight(), 1)
	var known bool
	if e.Health, known = health(m.GetHealthStatus()); !known {
		r.refuse("health_status", "%s is not supported", m.GetHealthStatus())
	}
	return host
}

// reachable reports whether connections to an address are possible.
func reachable(ip netip.Addr) bool { return !ip.IsUnspecified() && !ip.IsMulticast() }

// hostName returns an error if a host name is invalid.
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

// health converts a health status. A timeout of an active check counts as unhealthy. It returns false for a degraded
// endpoint, which should serve only when others cannot; the mesh does not support that.
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

// errUncommon means that the generated decoder must parse the assignment.
var errUncommon = errors.New("not common")

// commonAssignment parses a common assignment. It returns an error for anything that it does not know, for a repeated
// field that may occur only once, and for everything that may have to be refused. For the assignments that it accepts,
// it returns the same result as wholeAssignment.
func commonAssignment(b []byte) (a Assignment, err error) {
	total := uint64(0)
	err = Fields(b, func(f Field) error {
		switch {
		case f.Is(1, protowire.BytesType):
			return commonText(&a.Name, f)
		case f.Is(2, protowire.BytesType):
			l, err := commonLocality(f.Bytes)
			if total += uint64(l.Weight); err != nil || total > math.MaxUint32 {
				return errUncommon
			}
			if len(l.Endpoints) > 0 {
				a.Localities = append(a.Localities, l)
			}
			return nil
		}
		return errUncommon
	})
	if a.Name == "" {
		err = errUncommon
	}
	return a, err
}

func commonLocality(b []byte) (l mesh.Locality, err error) {
	endpoints := 0
	_ = Fields(b, func(f Field) error { // count the elements first, so that the list is allocated in its exact size
		if f.Is(2, protowire.BytesType) {
			endpoints++
		}
		return nil
	})
	if endpoints > 0 {
		l.Endpoints = make([]mesh.Endpoint, 0, endpoints)
	}
	placed, total := false, uint64(0)
	return l, Fields(b, func(f Field) (err error) {
		switch {
		case f.Is(1, protowire.BytesType) && !placed:
			placed = true
			return commonPlace(f.Bytes, &l)
		case f.Is(2, protowire.BytesType):
			e := mesh.Endpoint{}
			if err := commonEndpoint(f.Bytes, &e); err != nil {
				return err
			}
			l.Endpoints = append(l.Endpoints, e)
			if total += uint64(e.Weight); total > math.MaxUint32 {
				return errUncommon
			}
			return nil
		case f.Is(3, protowire.BytesType) && l.Weight == 0:
			return commonWeight(f.Bytes, &l.Weight)
		case f.Is(5, protowire.VarintType) && uint32(f.Varint) <= maxPriority:
			l.Priority = uint32(f.Varint)
			return nil
		}
		return errUncommon
	})
}

func commonPlace(b []byte, l *mesh.Locality) error {
	parts := map[protowire.Number]*string{1: &l.Region, 2: &l.Zone, 3: &l.SubZone}
	return Fields(b, func(f Field) error {
		if to := parts[f.Number]; to != nil && f.Type == protowire.BytesType {
			return commonText(to, f)
		}
		return errUncommon
	})
}

func commonText(to *string, f Field) error {
	if !utf8.Valid(f.Bytes) {
		return errUncommon
	}
	*to = string(f.Bytes)
	return nil
}

// commonWeight parses a UInt32Value other than 0.
func commonWeight(b []byte, w *uint32) error {
	f, rest, err := NextField(b)
	if err != nil || len(rest) > 0 || !f.Is(1, protowire.VarintType) || uint32(f.Varint) == 0 {
		return errUncommon
	}
	*w = uint32(f.Varint)
	return nil
}

func commonEndpoint(b []byte, e *mesh.Endpoint) error {
	err := Fields(b, func(f Field) (err error) {
		switch {
		case f.Is(1, protowire.BytesType) && !e.Address.IsValid():
			socket := sole(sole(f.Bytes)) // an Endpoint with only an Address, which has only a SocketAddress
			e.Address, err = commonSocket(socket)
			return err
		case f.Is(2, protowire.VarintType):
			var ok bool
			if e.Health, ok = health(corev3.HealthStatus(int32(f.Varint))); ok {
				return nil
			}
		case f.Is(4, protowire.BytesType) && e.Weight == 0:
			return commonWeight(f.Bytes, &e.Weight)
		}
		return errUncommon
	})
	if !e.Address.IsValid() {
		err = errUncommon
	}
	e.Weight = max(e.Weight, 1)
	return err
}

// sole returns the value of the only field of a message if it has number 1 and is length-delimited, and otherwise nil.
func sole(b []byte) []byte {
	if f, rest, err := NextField(b); err == nil && len(rest) == 0 && f.Is(1, protowire.BytesType) {
		return f.Bytes
	}
	return nil
}

func commonSocket(b []byte) (netip.AddrPort, error) {
	var ip netip.Addr
	var port uint32
	err := Fields(b, func(f Field) (err error) {
		switch {
		case f.Is(1, protowire.VarintType) && uint32(f.Varint) <= uint32(corev3.SocketAddress_UDP):
		case f.Is(2, protowire.BytesType):
			ip, err = parseIP(string(f.Bytes))
		case f.Is(3, protowire.VarintType):
			port = uint32(f.Varint)
		default:
			err = errUncommon
		}
		return err
	})
	if !ip.IsValid() || !reachable(ip) || port == 0 || port > math.MaxUint16 {
		err = errUncommon
	}
	return netip.AddrPortFrom(ip, uint16(port)), err
}
