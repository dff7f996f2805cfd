package proxyconfig

import (
	"errors"
	"fmt"
	"slices"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"tare/internal/mesh/controlplane/authority"
)

// anyone stands for all identities of the trust domain.
const anyone = "*"

// grant is a permission: identities, and the requests that they may make.
type grant struct {
	from     []string             // SPIFFE ids, or anyone
	requests []*rbacv3.Permission // a request must match one of these; none: all requests
}

// maxConditions bounds the conditions that the access lists of a service expand to.
const maxConditions = 1 << 16

// admit determines who may call the service. If the service has an access list, that list decides. Otherwise the lists
// of the services that lead to it decide, each for the requests that its service directs to s. If no service leads to
// s, or one that does has no list, every identity may call s, unless discovery is by policy.
func (s *service) admit(m *Mesh) error {
	s.restricted = m.config.Discovery == byPolicy
	if s.Access != nil {
		s.restricted = true
		return s.grant(m, s, func(*route) bool { return true })
	}
	listed := slices.ContainsFunc(s.from, func(by *service) bool { return by.Access != nil })
	open := slices.ContainsFunc(s.from, func(by *service) bool { return by.Access == nil })
	if !listed || open && !s.restricted {
		return nil
	}
	s.restricted = true
	for _, by := range s.from {
		if err := s.grant(m, by, func(r *route) bool { return by.sends(r, s) }); err != nil {
			return err
		}
	}
	return nil
}

// sends reports whether a route leads to another service.
func (s *service) sends(r *route, to *service) bool {
	weights := r.To
	if len(weights) == 0 {
		weights = s.weights()
	}
	return weights[to.Name] > 0
}

// grant adds to s.grants the access list of by, which is s or a service that leads to s. From the entries that name
// routes, it takes only the routes for which concerns(route) is true.
func (s *service) grant(m *Mesh, by *service, concerns func(*route) bool) error {
	total := 0
	for i, a := range by.Access {
		var g grant
		for j, id := range a.From {
			if id == anyone {
				g.from = append(g.from, anyone)
				continue
			}
			name, err := authority.Identity(m.trustDomain, id)
			if err != nil {
				return item("access", i, item("from", j, err))
			}
			g.from = append(g.from, name)
		}
		if len(g.from) == 0 {
			return item("access", i, in("from", errors.New(`is missing: name identities, or "*" for all`)))
		}
		slices.Sort(g.from)
		g.from = slices.Compact(g.from)
		if len(a.Routes) > 0 && m.mtls != off {
			s.limited = true
		}
		for j, name := range a.Routes {
			at := slices.IndexFunc(by.routes, func(r *route) bool { return r.Name == name && name != "" })
			if at < 0 {
				return item("access", i, item("routes", j, fmt.Errorf("there is no route %s", name)))
			}
			if concerns(by.routes[at]) {
				p, conditions := by.taking(at)
				if total += conditions; total > maxConditions {
					return item("access", i, fmt.Errorf("the routes come to more than %d conditions", maxConditions))
				}
				g.requests = append(g.requests, p)
			}
		}
		if len(a.Routes) == 0 || len(g.requests) > 0 {
			s.grants = append(s.grants, g)
		}
	}
	return nil
}

// taking returns the permission for the requests that the route s.routes[at] gets: those that match it and no earlier
// route. It also returns the number of conditions in the permission.
func (s *service) taking(at int) (p *rbacv3.Permission, conditions int) {
	all := s.routes[at].permissions()
	conditions = len(all)
	var before []*rbacv3.Permission
	for _, r := range s.routes[:at] {
		if !r.apart(s.routes[at]) {
			own := r.permissions()
			conditions += len(own)
			before = append(before, both(own))
		}
	}
	if len(before) > 0 {
		all = append(all, &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: either(before)}})
	}
	return both(all), conditions
}

// permissions returns the conditions of a route, all of which must hold.
func (r *route) permissions() (out []*rbacv3.Permission) {
	path := func(m *matcherv3.StringMatcher) {
		out = append(out, &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{
			UrlPath: &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: m}}}})
	}
	switch {
	case r.Match.Path != "":
		path(exactly(r.Match.Path))
	case r.Match.Prefix != "":
		path(beginning(r.Match.Prefix))
	case r.Match.Regex != "":
		path(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: r.Match.Regex}}})
	}
	for _, h := range r.headerMatchers() {
		out = append(out, &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: h}})
	}
	return out
}

// both returns a permission that holds if all permissions do.
func both(list []*rbacv3.Permission) *rbacv3.Permission {
	switch len(list) {
	case 0:
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
	case 1:
		return list[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: list}}}
}

// either returns a permission that holds if any permission does.
func either(list []*rbacv3.Permission) *rbacv3.Permission {
	if len(list) == 1 {
		return list[0]
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: list}}}
}

// guard returns the settings with which an HTTP service refuses requests that are not granted.
func (s *service) guard(m *Mesh) manager {
	if m.mtls == off || !s.restricted {
		return manager{}
	}
	// With no policies, these rules allow no request.
	rules := &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: map[string]*rbacv3.Policy{}}
	for i, g := range s.grants {
		p := &rbacv3.Policy{Permissions: g.requests}
		if len(p.Permissions) == 0 {
			p.Permissions = []*rbacv3.Permission{both(nil)}
		}
		for _, id := range g.from {
			p.Principals = append(p.Principals, &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{
				Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m.named(id)}}})
		}
		rules.Policies[fmt.Sprintf("access-%05d", i)] = p // Envoy checks policies in the order of their names
	}
	return manager{rbac: rules, paths: s.limited}
}

// named returns a matcher of an identity, or of all identities of the trust domain.
func (m *Mesh) named(id string) *matcherv3.StringMatcher {
	if id == anyone {
		return beginning("spiffe://" + m.trustDomain + "/")
	}
	return exactly(id)
}

// exactly returns a matcher for one text.
func exactly(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: text}}
}

// beginning returns a matcher for all texts that begin with the given one.
func beginning(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: text}}
}

// granted returns the identities that may call the service, without duplicates, or just "*" (anyone) if all may.
func (s *service) granted() []string {
	if !s.restricted {
		return []string{anyone}
	}
	var out []string
	for _, g := range s.grants {
		out = append(out, g.from...)
	}
	slices.Sort(out)
	if out = slices.Compact(out); slices.Contains(out, anyone) {
		return []string{anyone}
	}
	return out
}

// visibleTo reports whether proxies of an identity get the service's resources.
func (s *service) visibleTo(id string) bool {
	_, found := slices.BinarySearch(s.callers, id)
	return found || len(s.callers) == 1 && s.callers[0] == anyone
}
