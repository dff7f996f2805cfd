package config

import (
	"maps"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh/xds/translate"
)

// maxDepth is how deep conditions may nest, and maxConditions how many a filter may have.
const (
	maxDepth      = 32
	maxConditions = 1 << 16
)

// reader reads conditions of one filter.
type reader struct {
	http  bool // requests are looked at, and not only connections
	count int
}

func networkRBAC(a *anypb.Any) (*Access, error) {
	var m networkrbacv3.RBAC
	if err := translate.Decode(a.GetValue(), &m); err != nil {
		return nil, err
	}
	// A decision is made once, before anything is sent: "on first byte" would let a server that speaks first be heard.
	if err := translate.Only(&m, "rules", "stat_prefix", "enforcement_type"); err != nil {
		return nil, err
	}
	return access(m.GetRules(), false)
}

func httpRBAC(a *anypb.Any) (*Access, error) {
	var m httprbacv3.RBAC
	if err := translate.Decode(a.GetValue(), &m); err != nil {
		return nil, err
	}
	return httpRules(&m)
}

func httpRules(m *httprbacv3.RBAC) (*Access, error) {
	if err := translate.Only(m, "rules", "rules_stat_prefix"); err != nil {
		return nil, err
	}
	return access(m.GetRules(), true)
}

// perRoute reads the rules that stand in the place of those of the listener.
func perRoute(a *anypb.Any) (*Override, error) {
	var m httprbacv3.RBACPerRoute
	if err := translate.Decode(a.GetValue(), &m); err != nil {
		return nil, err
	}
	if err := translate.Only(&m, "rbac"); err != nil {
		return nil, err
	}
	o := &Override{}
	if m.GetRbac() == nil {
		return o, nil
	}
	var err error
	o.Access, err = httpRules(m.GetRbac())
	return o, translate.In("rbac", err)
}

// access reads rules; nil where there are none, which enforces nothing.
func access(m *rbacv3.RBAC, http bool) (*Access, error) {
	if m == nil {
		return nil, nil
	}
	if err := translate.Only(m, "action", "policies"); err != nil {
		return nil, translate.In("rules", err)
	}
	out := &Access{}
	switch m.GetAction() {
	case rbacv3.RBAC_ALLOW:
	case rbacv3.RBAC_DENY:
		out.Deny = true
	default:
		return nil, translate.In(
			"rules",
			translate.In("action", translate.Refuse("%s is not supported", m.GetAction())),
		)
	}
	r := &reader{http: http}
	for _, name := range slices.Sorted(maps.Keys(m.GetPolicies())) {
		p, err := r.policy(name, m.GetPolicies()[name])
		if err != nil {
			return nil, translate.In(
				"rules",
				translate.In("policies", translate.In("["+translate.Clip(name)+"]", err)),
			)
		}
		out.Policies = append(out.Policies, p)
	}
	return out, nil
}

func (r *reader) policy(name string, m *rbacv3.Policy) (p Policy, err error) {
	if err := translate.Only(m, "permissions", "principals"); err != nil {
		return p, err
	}
	p.Name = name
	if p.To, err = either(r, m.GetPermissions(), r.permission, 0); err != nil {
		return p, translate.In("permissions", err)
	}
	p.From, err = either(r, m.GetPrincipals(), r.principal, 0)
	return p, translate.In("principals", err)
}

func always(*Call) bool { return true }

func (r *reader) permission(m *rbacv3.Permission, depth int) (Condition, error) {
	switch p := m.GetRule().(type) {
	case *rbacv3.Permission_AndRules:
		c, err := all(r, p.AndRules.GetRules(), r.permission, depth+1)
		return c, translate.In("and_rules", translate.In("rules", err))
	case *rbacv3.Permission_OrRules:
		c, err := either(r, p.OrRules.GetRules(), r.permission, depth+1)
		return c, translate.In("or_rules", translate.In("rules", err))
	case *rbacv3.Permission_NotRule:
		c, err := negated(p.NotRule, r.permission, depth+1)
		return c, translate.In("not_rule", err)
	case *rbacv3.Permission_Any:
		return anything(p.Any)
	case *rbacv3.Permission_Header:
		return r.header(p.Header)
	case *rbacv3.Permission_UrlPath:
		return r.path(p.UrlPath)
	case *rbacv3.Permission_DestinationIp:
		c, err := within(p.DestinationIp, func(c *Call) netip.Addr { return c.Local.Addr() })
		return c, translate.In("destination_ip", err)
	case *rbacv3.Permission_DestinationPort:
		return func(c *Call) bool { return uint32(c.Local.Port()) == p.DestinationPort }, nil
	case *rbacv3.Permission_DestinationPortRange:
		from, end := p.DestinationPortRange.GetStart(), p.DestinationPortRange.GetEnd() // the end is not part of it
		if err := translate.Only(p.DestinationPortRange, "start", "end"); err != nil {
			return nil, translate.In("destination_port_range", err)
		}
		return func(c *Call) bool { return int32(c.Local.Port()) >= from && int32(c.Local.Port()) < end }, nil
	case *rbacv3.Permission_RequestedServerName:
		t, err := text(p.RequestedServerName)
		return func(c *Call) bool { return t(c.ServerName) }, translate.In("requested_server_name", err)
	case nil:
		return nil, translate.Refuse("is empty")
	}
	return nil, translate.Only(m) // names what is there
}

func (r *reader) principal(m *rbacv3.Principal, depth int) (Condition, error) {
	remote := func(c *Call) netip.Addr { return c.Remote.Addr() }
	switch p := m.GetIdentifier().(type) {
	case *rbacv3.Principal_AndIds:
		c, err := all(r, p.AndIds.GetIds(), r.principal, depth+1)
		return c, translate.In("and_ids", translate.In("ids", err))
	case *rbacv3.Principal_OrIds:
		c, err := either(r, p.OrIds.GetIds(), r.principal, depth+1)
		return c, translate.In("or_ids", translate.In("ids", err))
	case *rbacv3.Principal_NotId:
		c, err := negated(p.NotId, r.principal, depth+1)
		return c, translate.In("not_id", err)
	case *rbacv3.Principal_Any:
		return anything(p.Any)
	case *rbacv3.Principal_Authenticated_:
		c, err := authenticated(p.Authenticated)
		return c, translate.In("authenticated", err)
	case *rbacv3.Principal_Header:
		return r.header(p.Header)
	case *rbacv3.Principal_UrlPath:
		return r.path(p.UrlPath)
	// Without a proxy protocol or trusted headers, the three are the same: whoever connects.
	case *rbacv3.Principal_SourceIp:
		c, err := within(p.SourceIp, remote) //nolint:staticcheck // deprecated: control planes may still send it
		return c, translate.In("source_ip", err)
	case *rbacv3.Principal_DirectRemoteIp:
		c, err := within(p.DirectRemoteIp, remote)
		return c, translate.In("direct_remote_ip", err)
	case *rbacv3.Principal_RemoteIp:
		c, err := within(p.RemoteIp, remote)
		return c, translate.In("remote_ip", err)
	case nil:
		return nil, translate.Refuse("is empty")
	}
	return nil, translate.Only(m)
}

func authenticated(m *rbacv3.Principal_Authenticated) (Condition, error) {
	if err := translate.Only(m, "principal_name"); err != nil {
		return nil, err
	}
	if m.GetPrincipalName() == nil {
		return func(c *Call) bool { return c.Authenticated }, nil
	}
	t, err := text(m.GetPrincipalName())
	return func(c *Call) bool { return c.Authenticated && slices.ContainsFunc(c.Names, t) },
		translate.In("principal_name", err)
}

func (r *reader) header(m headerMatcher) (Condition, error) {
	if !r.http {
		return nil, translate.In("header", translate.Refuse("a connection has no headers"))
	}
	h, err := header(m)
	return Condition(h), translate.In("header", err)
}

func (r *reader) path(m *matcherv3.PathMatcher) (Condition, error) {
	if !r.http {
		return nil, translate.In("url_path", translate.Refuse("a connection has no path"))
	}
	err := translate.Only(m, "path")
	var t Text
	if err == nil {
		t, err = text(m.GetPath())
		err = translate.In("path", err)
	}
	return func(c *Call) bool { return t(c.Path) }, translate.In("url_path", err)
}

func anything(any bool) (Condition, error) {
	if !any {
		return nil, translate.In("any", translate.Refuse("must be true"))
	}
	return always, nil
}

func within(m *corev3.CidrRange, of func(*Call) netip.Addr) (Condition, error) {
	p, err := translate.CIDR(m)
	return func(c *Call) bool { return p.Contains(of(c).Unmap()) }, err
}

func negated[T any](part T, read func(T, int) (Condition, error), depth int) (Condition, error) {
	if depth > maxDepth {
		return nil, translate.Refuse("conditions are nested more than %d deep", maxDepth)
	}
	c, err := read(part, depth)
	return func(call *Call) bool { return !c(call) }, err
}

// either holds where one of the parts does.
func either[T any](r *reader, parts []T, read func(T, int) (Condition, error), depth int) (Condition, error) {
	list, err := conditions(r, parts, read, depth)
	if len(list) == 1 {
		return list[0], err
	}
	return func(c *Call) bool {
		for _, holds := range list {
			if holds(c) {
				return true
			}
		}
		return false
	}, err
}

// all holds where all of the parts do.
func all[T any](r *reader, parts []T, read func(T, int) (Condition, error), depth int) (Condition, error) {
	list, err := conditions(r, parts, read, depth)
	return func(c *Call) bool {
		for _, holds := range list {
			if !holds(c) {
				return false
			}
		}
		return true
	}, err
}

func conditions[T any](r *reader, parts []T, read func(T, int) (Condition, error), depth int) ([]Condition, error) {
	if depth > maxDepth {
		return nil, translate.Refuse("conditions are nested more than %d deep", maxDepth)
	}
	if len(parts) == 0 {
		return nil, translate.Refuse("is missing")
	}
	if r.count += len(parts); r.count > maxConditions {
		return nil, translate.Refuse("there are more than %d conditions", maxConditions)
	}
	out := make([]Condition, 0, len(parts))
	for i, p := range parts {
		c, err := read(p, depth)
		if err != nil {
			return nil, translate.Item(i, err)
		}
		out = append(out, c)
	}
	return out, nil
}
