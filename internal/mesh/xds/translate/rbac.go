package translate

import (
	"maps"
	"net/netip"
	"slices"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"

	"tare/internal/mesh"
)

// maxTerms bounds what a policy's and-rules and or-rules multiply to, and maxDepth how deep they nest.
const (
	maxTerms = 1024
	maxDepth = 32
)

// rbac is an RBAC filter; one without rules enforces nothing.
func rbac(m *networkrbacv3.RBAC, n notes) (out mesh.RBAC, enforced bool, err error) {
	if err := only(m, "rules", "stat_prefix", "shadow_rules", "shadow_rules_stat_prefix"); err != nil {
		return out, false, err
	}
	if m.GetShadowRules() != nil {
		n.in("shadow_rules").note("nobody tries them: they let nothing pass, and stop nothing")
	}
	if m.GetRules() == nil {
		return out, false, nil
	}
	out, err = enforce(m.GetRules())
	return out, true, err
}

// enforce reads the rules of an RBAC filter.
func enforce(r *rbacv3.RBAC) (out mesh.RBAC, err error) {
	if err := only(r, "action", "policies"); err != nil {
		return out, in("rules", err)
	}
	switch r.GetAction() {
	case rbacv3.RBAC_ALLOW:
	case rbacv3.RBAC_DENY:
		out.Deny = true
	default:
		return out, in("rules", in("action", refuse("%s is not supported", r.GetAction())))
	}
	for _, name := range slices.Sorted(maps.Keys(r.GetPolicies())) { // in order, so that the same bytes mean the same
		list, err := policy(name, r.GetPolicies()[name])
		if err != nil {
			return out, in("rules", in("policies", in("["+clip(name)+"]", err)))
		}
		out.Policies = append(out.Policies, list...)
	}
	return out, nil
}

// policy matches where one of its permissions and one of its principals do.
func policy(name string, m *rbacv3.Policy) ([]mesh.Principal, error) {
	if err := only(m, "permissions", "principals"); err != nil {
		return nil, err
	}
	if len(m.GetPermissions()) == 0 {
		return nil, in("permissions", refuse("is missing"))
	}
	if len(m.GetPrincipals()) == 0 {
		return nil, in("principals", refuse("is missing"))
	}
	to, err := either(m.GetPermissions(), permission, 0)
	if err != nil {
		return nil, in("permissions", err)
	}
	from, err := either(m.GetPrincipals(), principal, 0)
	if err != nil {
		return nil, in("principals", err)
	}
	both, err := and(to, from)
	if err != nil {
		return nil, err
	}
	for i := range both {
		both[i].Name = name
	}
	return both, nil
}

// A condition is a list of terms, one of which must hold. No term: it never holds.
type condition = []mesh.Principal

// always is the condition that holds for all.
var always = condition{{}}

func permission(m *rbacv3.Permission, depth int) (condition, error) {
	if err := only(m, "and_rules", "or_rules", "any", "destination_ip", "destination_port",
		"destination_port_range"); err != nil {
		return nil, err
	}
	switch r := m.GetRule().(type) {
	case *rbacv3.Permission_AndRules:
		c, err := all(r.AndRules.GetRules(), permission, depth+1)
		return c, in("and_rules", in("rules", err))
	case *rbacv3.Permission_OrRules:
		c, err := either(r.OrRules.GetRules(), permission, depth+1)
		return c, in("or_rules", in("rules", err))
	case *rbacv3.Permission_Any:
		return anything(r.Any)
	case *rbacv3.Permission_DestinationIp:
		p, err := cidr(r.DestinationIp)
		return condition{{Destinations: []netip.Prefix{p}}}, in("destination_ip", err)
	case *rbacv3.Permission_DestinationPort:
		p, err := port(r.DestinationPort)
		return condition{{DestinationPorts: []mesh.PortRange{{From: p, To: p}}}}, in("destination_port", err)
	case *rbacv3.Permission_DestinationPortRange:
		from, end := r.DestinationPortRange.GetStart(), r.DestinationPortRange.GetEnd() // the end is not part of it
		if from < 0 || end > 65536 || end <= max(from, 1) {
			return nil, in("destination_port_range", refuse("[%d, %d) is no range of ports", from, end))
		}
		if err := only(r.DestinationPortRange, "start", "end"); err != nil {
			return nil, in("destination_port_range", err)
		}
		return condition{{DestinationPorts: []mesh.PortRange{{From: uint16(max(from, 1)), To: uint16(end - 1)}}}}, nil
	}
	return nil, refuse("is empty")
}

func principal(m *rbacv3.Principal, depth int) (condition, error) {
	if err := only(m, "and_ids", "or_ids", "any", "source_ip", "direct_remote_ip", "remote_ip"); err != nil {
		return nil, err
	}
	source := func(p netip.Prefix) condition { return condition{{Sources: []netip.Prefix{p}}} }
	switch r := m.GetIdentifier().(type) {
	case *rbacv3.Principal_AndIds:
		c, err := all(r.AndIds.GetIds(), principal, depth+1)
		return c, in("and_ids", in("ids", err))
	case *rbacv3.Principal_OrIds:
		c, err := either(r.OrIds.GetIds(), principal, depth+1)
		return c, in("or_ids", in("ids", err))
	case *rbacv3.Principal_Any:
		return anything(r.Any)
	// Without a proxy protocol, the three are the same: whoever connects.
	case *rbacv3.Principal_SourceIp:
		p, err := cidr(r.SourceIp) //nolint:staticcheck // deprecated: control planes may still send it
		return source(p), in("source_ip", err)
	case *rbacv3.Principal_DirectRemoteIp:
		p, err := cidr(r.DirectRemoteIp)
		return source(p), in("direct_remote_ip", err)
	case *rbacv3.Principal_RemoteIp:
		p, err := cidr(r.RemoteIp)
		return source(p), in("remote_ip", err)
	}
	return nil, refuse("is empty")
}

func anything(any bool) (condition, error) {
	if !any {
		return nil, in("any", refuse("must be true"))
	}
	return always, nil
}

// either holds where one of the parts does.
func either[T any](parts []T, read func(T, int) (condition, error), depth int) (condition, error) {
	return joined(parts, read, depth, nil, func(a, b condition) (condition, error) {
		if len(a)+len(b) > maxTerms {
			return nil, refuse("conditions come to more than %d terms", maxTerms)
		}
		return append(a, b...), nil
	})
}

// all holds where all of the parts do.
func all[T any](parts []T, read func(T, int) (condition, error), depth int) (condition, error) {
	return joined(parts, read, depth, always, and)
}

func joined[T any](parts []T, read func(T, int) (condition, error), depth int, out condition,
	join func(a, b condition) (condition, error)) (condition, error) {
	if depth > maxDepth {
		return nil, refuse("conditions are nested more than %d deep", maxDepth)
	}
	if len(parts) == 0 {
		return nil, refuse("is missing")
	}
	for i, p := range parts {
		c, err := read(p, depth)
		if err != nil {
			return nil, item(i, err)
		}
		if out, err = join(out, c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// and is the terms of both together, but for those that contradict each other.
func and(a, b condition) (out condition, err error) {
	if len(a)*len(b) > maxTerms {
		return nil, refuse("conditions come to more than %d terms", maxTerms)
	}
	for _, x := range a {
		for _, y := range b {
			t, ok := mesh.Principal{}, true
			t.Sources, ok = common(x.Sources, y.Sources, prefixes, ok)
			t.Destinations, ok = common(x.Destinations, y.Destinations, prefixes, ok)
			t.SourcePorts, ok = common(x.SourcePorts, y.SourcePorts, ports, ok)
			t.DestinationPorts, ok = common(x.DestinationPorts, y.DestinationPorts, ports, ok)
			if ok {
				out = append(out, t)
			}
		}
	}
	return out, nil
}

// common is what two lists both allow, of which an empty one allows all; ok is false where that is nothing.
func common[T any](a, b []T, both func(T, T) (T, bool), ok bool) ([]T, bool) {
	switch {
	case !ok:
		return nil, false
	case len(a) == 0:
		return b, true
	case len(b) == 0:
		return a, true
	}
	var out []T
	for _, x := range a {
		for _, y := range b {
			if t, ok := both(x, y); ok {
				out = append(out, t)
			}
		}
	}
	return out, len(out) > 0
}

func prefixes(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() < b.Bits() {
		a, b = b, a
	}
	return a, a.Overlaps(b)
}

func ports(a, b mesh.PortRange) (mesh.PortRange, bool) {
	r := mesh.PortRange{From: max(a.From, b.From), To: min(a.To, b.To)}
	return r, r.From <= r.To
}
