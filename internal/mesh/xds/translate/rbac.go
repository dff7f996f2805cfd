package translate

import (
	"maps"
	"slices"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"

	"tare/internal/mesh"
)

// maxTerms bounds the number of terms into which a policy's and-rules and or-rules expand, and maxDepth the depth of
// their nesting.
const (
	maxTerms = 1024
	maxDepth = 32
)

// rbac parses an RBAC filter. A filter without rules enforces nothing.
func rbac(m *networkrbacv3.RBAC, r reader) (out mesh.RBAC, enforced bool) {
	r.only("", m, "rules", "stat_prefix", "shadow_rules", "shadow_rules_stat_prefix")
	r.noteIf(m.GetShadowRules() != nil, "shadow_rules", "they are not evaluated, and have no effect")
	if m.GetRules() == nil {
		return out, false
	}
	return enforce(m.GetRules(), r.in("rules")), true
}

// enforce parses the rules of an RBAC filter.
func enforce(m *rbacv3.RBAC, r reader) (out mesh.RBAC) {
	r.only("", m, "action", "policies")
	out.Deny = m.GetAction() == rbacv3.RBAC_DENY
	r.require(out.Deny || m.GetAction() == rbacv3.RBAC_ALLOW, "action", "%s is not supported", m.GetAction())
	for _, name := range slices.Sorted(maps.Keys(m.GetPolicies())) { // sorted, so that the result is deterministic
		out.Policies = append(out.Policies, policy(name, m.GetPolicies()[name], r.in("policies["+clip(name)+"]"))...)
		if r.failed() {
			break
		}
	}
	return out
}

// policy parses a policy, which matches if one of its permissions and one of its principals match.
func policy(name string, m *rbacv3.Policy, r reader) []mesh.Principal {
	r.only("", m, "permissions", "principals")
	r.require(len(m.GetPermissions()) > 0, "permissions", "is missing")
	r.require(len(m.GetPrincipals()) > 0, "principals", "is missing")
	to := either(m.GetPermissions(), permission, 0, r.in("permissions"))
	both := and(to, either(m.GetPrincipals(), principal, 0, r.in("principals")), r)
	for i := range both {
		both[i].Name = name
	}
	return both
}

// condition is a list of terms of which at least one must hold. Without terms it never holds.
type condition = []mesh.Principal

// always is a condition that holds for every connection.
var always = condition{{}}

func permission(m *rbacv3.Permission, depth int, r reader) condition {
	r.only("", m, "and_rules", "or_rules", "any", "destination_ip", "destination_port", "destination_port_range")
	switch is := m.GetRule().(type) {
	case *rbacv3.Permission_AndRules:
		return all(is.AndRules.GetRules(), permission, depth+1, r.in("and_rules.rules"))
	case *rbacv3.Permission_OrRules:
		return either(is.OrRules.GetRules(), permission, depth+1, r.in("or_rules.rules"))
	case *rbacv3.Permission_Any:
		return anything(is.Any, r)
	case *rbacv3.Permission_DestinationIp:
		return condition{{Destinations: r.cidr("destination_ip", is.DestinationIp)}}
	case *rbacv3.Permission_DestinationPort:
		p := r.port("destination_port", is.DestinationPort)
		return condition{{DestinationPorts: []mesh.PortRange{{From: p, To: p}}}}
	case *rbacv3.Permission_DestinationPortRange:
		from, end := is.DestinationPortRange.GetStart(), is.DestinationPortRange.GetEnd() // the end is exclusive
		r.require(from >= 0 && end <= 65536 && end > max(from, 1), "destination_port_range",
			"[%d, %d) is no range of ports", from, end)
		r.only("destination_port_range", is.DestinationPortRange, "start", "end")
		return condition{{DestinationPorts: []mesh.PortRange{{From: uint16(max(from, 1)), To: uint16(end - 1)}}}}
	}
	r.refuse("", "is empty")
	return nil
}

func principal(m *rbacv3.Principal, depth int, r reader) condition {
	r.only("", m, "and_ids", "or_ids", "any", "source_ip", "direct_remote_ip", "remote_ip")
	switch is := m.GetIdentifier().(type) {
	case *rbacv3.Principal_AndIds:
		return all(is.AndIds.GetIds(), principal, depth+1, r.in("and_ids.ids"))
	case *rbacv3.Principal_OrIds:
		return either(is.OrIds.GetIds(), principal, depth+1, r.in("or_ids.ids"))
	case *rbacv3.Principal_Any:
		return anything(is.Any, r)
	// Without the proxy protocol, all three are the address of the peer.
	case *rbacv3.Principal_SourceIp:
		//nolint:staticcheck // deprecated: control planes may still send it
		return condition{{Sources: r.cidr("source_ip", is.SourceIp)}}
	case *rbacv3.Principal_DirectRemoteIp:
		return condition{{Sources: r.cidr("direct_remote_ip", is.DirectRemoteIp)}}
	case *rbacv3.Principal_RemoteIp:
		return condition{{Sources: r.cidr("remote_ip", is.RemoteIp)}}
	}
	r.refuse("", "is empty")
	return nil
}

func anything(any bool, r reader) condition {
	r.require(any, "any", "must be true")
	return always
}

// readCondition parses a permission or a principal, which may contain others.
type readCondition[T any] func(m T, depth int, r reader) condition

// either returns a condition that holds if one of the parts does.
func either[T any](parts []T, read readCondition[T], depth int, r reader) condition {
	return joined(parts, read, depth, r, nil, func(a, b condition, r reader) condition {
		r.require(len(a)+len(b) <= maxTerms, "", "conditions come to more than %d terms", maxTerms)
		return append(a, b...)
	})
}

// all returns a condition that holds if all of the parts do.
func all[T any](parts []T, read readCondition[T], depth int, r reader) condition {
	return joined(parts, read, depth, r, always, and)
}

func joined[T any](parts []T, read readCondition[T], depth int, r reader, out condition,
	join func(a, b condition, r reader) condition) condition {
	r.require(depth <= maxDepth, "", "conditions are nested more than %d deep", maxDepth)
	r.require(len(parts) > 0, "", "is missing")
	for i, p := range parts {
		if r.failed() {
			return nil
		}
		out = join(out, read(p, depth, r.item(i)), r)
	}
	return out
}

// and returns the combinations of the terms of a with those of b, without combinations that contradict themselves.
func and(a, b condition, r reader) (out condition) {
	if len(a)*len(b) > maxTerms {
		r.refuse("", "conditions come to more than %d terms", maxTerms)
		return nil
	}
	for i := range a {
		for j := range b {
			if t, ok := a[i].And(&b[j]); ok {
				out = append(out, t)
			}
		}
	}
	return out
}
