package proxyconfig

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A filter chain decides whether a connection is allowed, as soon as the connection is accepted. Envoy's network RBAC
// would decide only at the client's first byte. By that time, tcp_proxy has connected to the server and forwarded what
// the server sent (envoyproxy/envoy issue 9023).

// condition is a parsed Rule without its ports, which have already been compared. A connection matches if from contains
// its source, and to contains its destination; an empty list contains every address.
type condition struct{ from, to []netip.Prefix }

// cell is a set of connections by the prefixes of their sources and destinations. A connection belongs to the cell
// with the longest prefixes that contain its addresses. The zero prefix contains every address.
type cell struct {
	to, from netip.Prefix
	allowed  bool
}

// maxCells bounds the number of cells of a listener: destinations times sources.
const maxCells = 1 << 16

// judge divides the connections of a listener at the given address into cells, by the service's allow and deny rules.
// If no connection is denied, there is one cell.
func (s *service) judge(at netip.AddrPort) ([]cell, error) {
	deny, err := conditions("deny", s.Deny, at)
	if err != nil {
		return nil, err
	}
	allow, err := conditions("allow", s.Allow, at)
	if err != nil {
		return nil, err
	}
	anywhere := netip.PrefixFrom(at.Addr(), 0).Masked() // all addresses of the listener's family
	destinations, sources := []netip.Prefix{anywhere}, []netip.Prefix{anywhere}
	for _, c := range slices.Concat(deny, allow) {
		destinations, sources = append(destinations, c.to...), append(sources, c.from...)
	}
	destinations, sources = ordered(destinations), ordered(sources)
	if len(destinations)*len(sources) > maxCells {
		return nil, in("allow", fmt.Errorf("with deny it comes to more than %d combinations", maxCells))
	}
	var rows [][]cell // by destination
	for _, to := range destinations {
		var row []cell
		for _, from := range sources {
			c := cell{to, from, !matches(deny, to, from) && (len(s.Allow) == 0 || matches(allow, to, from))}
			if before := holder(row, from); before == nil || before.allowed != c.allowed {
				row = append(row, c)
			}
		}
		rows = append(rows, row)
	}
	return widest(rows, at), nil
}

// widest removes destinations whose cells equal those of the next wider destination.
func widest(rows [][]cell, at netip.AddrPort) (out []cell) {
	var kept [][]cell
	for _, row := range rows {
		var before []cell
		for _, k := range kept {
			if covers(k[0].to, row[0].to) {
				before = k // the last one is the narrowest
			}
		}
		same := func(a, b cell) bool { return a.from == b.from && a.allowed == b.allowed }
		if before == nil || !slices.EqualFunc(before, row, same) {
			kept = append(kept, row)
		}
	}
	for _, row := range kept {
		for _, c := range row {
			// A prefix that covers all addresses of the listener's family means the same as no prefix.
			if c.to.Bits() == 0 && c.to.Addr().Is4() == at.Addr().Is4() {
				c.to = netip.Prefix{}
			}
			if c.from.Bits() == 0 && c.from.Addr().Is4() == at.Addr().Is4() {
				c.from = netip.Prefix{}
			}
			out = append(out, c)
		}
	}
	return out
}

// ordered returns the prefixes of the first one's family, sorted with wider ones first, without duplicates.
func ordered(list []netip.Prefix) []netip.Prefix {
	four := list[0].Addr().Is4()
	list = slices.DeleteFunc(list, func(p netip.Prefix) bool { return p.Addr().Is4() != four })
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	return slices.Compact(list)
}

// covers reports whether all addresses of the narrow prefix are in the wide one.
func covers(wide, narrow netip.Prefix) bool {
	return wide.Bits() <= narrow.Bits() && wide.Contains(narrow.Addr())
}

// holder returns the narrowest cell of a row that contains a source; nil: none does.
func holder(row []cell, from netip.Prefix) (found *cell) {
	for i := range row {
		if covers(row[i].from, from) {
			found = &row[i]
		}
	}
	return found
}

// matches reports whether one of the conditions holds for all connections of a cell.
func matches(list []condition, to, from netip.Prefix) bool {
	holds := func(by []netip.Prefix, p netip.Prefix) bool {
		return len(by) == 0 || slices.ContainsFunc(by, func(q netip.Prefix) bool { return covers(q, p) })
	}
	return slices.ContainsFunc(list, func(c condition) bool { return holds(c.to, to) && holds(c.from, from) })
}

// conditions parses rules for a listener at an address. All of the listener's connections go to its port, and to its
// address unless that is unspecified. Rules that cannot match are omitted.
func conditions(key string, rules []Rule, at netip.AddrPort) (list []condition, err error) {
	for i := range rules {
		c, reachable, err := rules[i].read(at)
		if err != nil {
			return nil, item(key, i, err)
		}
		if reachable {
			list = append(list, c)
		}
	}
	return list, nil
}

func (r *Rule) read(at netip.AddrPort) (c condition, reachable bool, err error) {
	from, err := prefixes(r.From)
	if err != nil {
		return c, false, in("from", err)
	}
	to, err := prefixes(r.To)
	if err != nil {
		return c, false, in("to", err)
	}
	port, err := r.port(at.Port())
	if err != nil {
		return c, false, in("ports", err)
	}
	c.from = from
	switch {
	case !port:
		return c, false, nil
	case at.Addr().IsUnspecified():
		c.to = to
	case len(to) > 0 && !slices.ContainsFunc(to, func(p netip.Prefix) bool { return p.Contains(at.Addr()) }):
		return c, false, nil
	}
	return c, true, nil
}

// port reports whether the rule applies to a destination port.
func (r *Rule) port(is uint16) (found bool, err error) {
	for _, text := range r.Ports {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || a == 0 || a > b {
			return false, fmt.Errorf("%q is neither a port nor a range such as 8000-8999", text)
		}
		found = found || a <= uint64(is) && uint64(is) <= b
	}
	return found || len(r.Ports) == 0, nil
}

func prefixes(list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, also := netip.ParseAddr(text)
			if also != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%q is neither an address nor a prefix such as 10.0.0.0/8", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Addr().Is4In6() {
			if p.Bits() < 96 {
				return nil, errors.New(text + " holds more than IPv4 addresses: give it as IPv6 prefixes")
			}
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// ranges converts prefixes to Envoy's type; zero prefixes are omitted.
func ranges(list ...netip.Prefix) (out []*corev3.CidrRange) {
	for _, p := range list {
		if p.IsValid() {
			out = append(out, &corev3.CidrRange{AddressPrefix: p.Addr().String(),
				PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))})
		}
	}
	return out
}
