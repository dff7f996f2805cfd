package config

import (
	"fmt"
	"net/netip"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"tare/internal/mesh/xds/translate"
)

// Selection says which connections a chain is for. What is empty is for all.
type Selection struct {
	To, From  []netip.Prefix
	Port      uint16 // of the destination; 0: any
	Transport Transport
}

// maxPrefixes bounds the ranges of one chain.
const maxPrefixes = 1 << 12

func selection(m *listenerv3.FilterChainMatch) (s Selection, err error) {
	if m == nil {
		return s, nil
	}
	if err := translate.Only(m, "destination_port", "transport_protocol", "prefix_ranges",
		"source_prefix_ranges"); err != nil {
		return s, err
	}
	port := m.GetDestinationPort().GetValue()
	if m.GetDestinationPort() != nil && (port == 0 || port > 65535) {
		return s, translate.In("destination_port", translate.Refuse("must be 1 to 65535, not %d", port))
	}
	s.Port = uint16(port)
	switch m.GetTransportProtocol() {
	case "":
	case "tls":
		s.Transport = TLS
	case "raw_buffer":
		s.Transport = Plain
	default:
		return s, translate.In("transport_protocol", translate.Refuse("must be tls or raw_buffer, not %q",
			translate.Clip(m.GetTransportProtocol())))
	}
	if len(m.GetPrefixRanges())*max(1, len(m.GetSourcePrefixRanges())) > maxPrefixes ||
		len(m.GetSourcePrefixRanges()) > maxPrefixes {
		return s, translate.Refuse("there are more than %d ranges", maxPrefixes)
	}
	for i, r := range m.GetPrefixRanges() {
		p, err := translate.CIDR(r)
		if err != nil {
			return s, translate.In("prefix_ranges", translate.Item(i, err))
		}
		s.To = append(s.To, p)
	}
	for i, r := range m.GetSourcePrefixRanges() {
		p, err := translate.CIDR(r)
		if err != nil {
			return s, translate.In("source_prefix_ranges", translate.Item(i, err))
		}
		s.From = append(s.From, p)
	}
	return s, nil
}

// keys are what no two chains of a listener may have in common.
func (s *Selection) keys() (out []string) {
	words := func(list []netip.Prefix) []string {
		if len(list) == 0 {
			return []string{"any"}
		}
		var out []string
		for _, p := range list {
			out = append(out, p.String())
		}
		return out
	}
	for _, to := range words(s.To) {
		for _, from := range words(s.From) {
			out = append(out, fmt.Sprint(s.Port, to, from, s.Transport))
		}
	}
	return out
}

// Asks says whether it takes a client's first byte to choose a chain.
func (l *Listener) Asks() bool {
	for _, c := range l.Chains {
		if c.For.Transport != Any {
			return true
		}
	}
	return false
}

// Select is the chain for a connection, or nil. As in Envoy, the destination's port counts first, then its address,
// then the transport, then the source; of addresses the narrowest range does, and what was chosen by one is not taken
// back for the next.
func (l *Listener) Select(to netip.AddrPort, from netip.Addr, secure bool) *Chain {
	list := toPort(l.Chains, to.Port())
	if len(list) == 0 {
		list = toPort(l.Chains, 0)
	}
	list = narrowest(list, to.Addr().Unmap(), func(c *Chain) []netip.Prefix { return c.For.To })
	want := Plain
	if secure {
		want = TLS
	}
	if some := ofTransport(list, want); len(some) > 0 {
		list = some
	} else {
		list = ofTransport(list, Any)
	}
	if list = narrowest(list, from.Unmap(), func(c *Chain) []netip.Prefix { return c.For.From }); len(list) > 0 {
		return list[0]
	}
	return l.Default
}

func toPort(list []*Chain, port uint16) (out []*Chain) {
	for _, c := range list {
		if c.For.Port == port {
			out = append(out, c)
		}
	}
	return out
}

func ofTransport(list []*Chain, t Transport) (out []*Chain) {
	for _, c := range list {
		if c.For.Transport == t {
			out = append(out, c)
		}
	}
	return out
}

// narrowest are the chains with the longest prefix that holds an address; a chain without prefixes has one of length
// -1.
func narrowest(list []*Chain, a netip.Addr, of func(*Chain) []netip.Prefix) (out []*Chain) {
	best := -2
	for _, c := range list {
		bits := -2
		if len(of(c)) == 0 {
			bits = -1
		}
		for _, p := range of(c) {
			if p.Contains(a) {
				bits = max(bits, p.Bits())
			}
		}
		if bits > best {
			best, out = bits, nil
		}
		if bits == best && bits > -2 {
			out = append(out, c)
		}
	}
	return out
}
