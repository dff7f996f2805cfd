package proxyconfig

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// manager configures an HTTP connection manager, except for its routing.
type manager struct {
	rbac *rbacv3.RBAC // nil: every caller may make every request
	// paths means that access depends on paths. Escaped slashes are then refused, because an application may treat them
	// as slashes.
	paths bool
	edge  bool // callers are outside the mesh, so headers such as X-Forwarded-For are not trusted
}

// httpFilters returns filters that route requests by a route configuration. They normalize paths first, because routes
// and policies depend on them.
func httpFilters(stat, routes string, of manager) []*listenerv3.Filter {
	m := &hcmv3.HttpConnectionManager{
		StatPrefix: stat,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{
			Rds: &hcmv3.Rds{ConfigSource: ads(), RouteConfigName: routes}},
		StreamIdleTimeout:          durationpb.New(0),
		NormalizePath:              wrapperspb.Bool(true),
		MergeSlashes:               true,
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
	}
	if of.edge {
		m.UseRemoteAddress = wrapperspb.Bool(true)
	}
	if of.paths {
		m.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_REJECT_REQUEST
	}
	add := func(name string, config proto.Message) {
		m.HttpFilters = append(m.HttpFilters, &hcmv3.HttpFilter{Name: name,
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(config)}})
	}
	if of.rbac != nil {
		add("envoy.filters.http.rbac", &httprbacv3.RBAC{Rules: of.rbac})
	}
	add("envoy.filters.http.router", &routerv3.Router{})
	return filters("envoy.filters.network.http_connection_manager", m)
}

// route is a compiled Route.
type route struct {
	*Route
	regex   *regexp.Regexp
	headers []string // names, sorted
}

// readRoutes checks the routes of a service, and compiles them.
func (s *service) readRoutes() error {
	names := map[string]bool{}
	for i := range s.Routes {
		r := &route{Route: &s.Routes[i]}
		err := r.read()
		if err == nil && r.Name != "" && names[r.Name] {
			err = in("name", fmt.Errorf("route %s is given twice", r.Name))
		}
		if err != nil {
			return item("routes", i, err)
		}
		names[r.Name] = true
		s.routes = append(s.routes, r)
	}
	return nil
}

// maxRegex is the maximum length of a regular expression, which bounds the program to which Envoy compiles it.
const maxRegex = 1024

// httpToken matches a method or a header's name (RFC 9110, section 5.6.2).
var httpToken = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (r *route) read() error {
	m := &r.Match
	given := 0
	for key, text := range map[string]string{"path": m.Path, "prefix": m.Prefix} {
		if text == "" {
			continue
		}
		if given++; text[0] != '/' || strings.ContainsAny(text, "?#") || !printable(text) {
			return in("match", in(key, fmt.Errorf("%q is no path such as /cart", text)))
		}
	}
	if m.Regex != "" {
		var err error
		if given++; len(m.Regex) > maxRegex {
			err = fmt.Errorf("it has more than %d characters", maxRegex)
		} else {
			r.regex, err = regexp.Compile("^(?:" + m.Regex + ")$")
		}
		if err != nil {
			return in("match", in("regex", err))
		}
	}
	if given > 1 {
		return in("match", errors.New("give one of path, prefix and regex"))
	}
	if m.Method != "" && !httpToken.MatchString(m.Method) {
		return in("match", in("method", fmt.Errorf("%q is no method", m.Method)))
	}
	r.headers = sorted(m.Headers)
	for _, name := range r.headers {
		if !httpToken.MatchString(name) || strings.ToLower(name) != name || !printable(m.Headers[name]) {
			return in("match", in("headers", wrongAt(fmt.Errorf("%q is not a header name in lower case, or %q not a value",
				name, m.Headers[name]), name)))
		}
	}
	if r.Timeout != "" {
		if _, err := durationOf(r.Timeout); err != nil {
			return in("timeout", err)
		}
	}
	return in("retries", r.Retries.check())
}

// printable reports whether a text is valid UTF-8 without control characters, so that it can be part of a request.
func printable(text string) bool {
	return utf8.ValidString(text) && strings.IndexFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) < 0
}

// retryOn are Envoy's names of the failures after which a request can be retried.
var retryOn = []string{"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited",
	"retriable-4xx", "refused-stream", "cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"}

// maxAttempts is the maximum number of retries of a request.
const maxAttempts = 100

func (r *Retries) check() error {
	if r.Attempts == 0 && len(r.On) > 0 {
		return in("attempts", errors.New("must be 1 or more"))
	}
	if r.Attempts > maxAttempts {
		return in("attempts", fmt.Errorf("must be at most %d, not %d", maxAttempts, r.Attempts))
	}
	for i, word := range r.On {
		if code, err := strconv.Atoi(word); !slices.Contains(retryOn, word) && (err != nil || code < 100 || code > 599) {
			return item("on", i, fmt.Errorf("%q is neither a status code nor one of %s", word, strings.Join(retryOn, ", ")))
		}
	}
	return nil
}

// policy returns the retry policy; nil: requests are not retried.
func (r *Retries) policy() *routev3.RetryPolicy {
	if r.Attempts == 0 {
		return nil
	}
	p := &routev3.RetryPolicy{NumRetries: wrapperspb.UInt32(r.Attempts)}
	var words []string
	for _, word := range r.On {
		if code, err := strconv.Atoi(word); err == nil {
			p.RetriableStatusCodes = append(p.RetriableStatusCodes, uint32(code))
			continue
		}
		words = append(words, word)
	}
	switch {
	case len(r.On) == 0:
		words = []string{"connect-failure", "refused-stream"}
	case len(p.RetriableStatusCodes) > 0:
		words = append(words, "retriable-status-codes")
	}
	p.RetryOn = strings.Join(words, ",")
	return p
}

// routeConfiguration returns the routes of a service's requests. Requests that match none of its own routes go to its
// split or endpoints, if it has any.
func (s *service) routeConfiguration() *routev3.RouteConfiguration {
	if o := s.prior; o != nil && o.routing != nil && (len(o.Endpoints) > 0) == (len(s.Endpoints) > 0) {
		return o.routing
	}
	host := &routev3.VirtualHost{Name: s.Name, Domains: []string{"*"}}
	for _, r := range s.routes {
		to := r.To
		if len(to) == 0 {
			to = s.weights()
		}
		host.Routes = append(host.Routes, &routev3.Route{Name: r.Name, Match: r.matcher(),
			Action: &routev3.Route_Route{Route: r.action(to)}})
	}
	if len(s.Split) > 0 || len(s.Endpoints) > 0 || len(s.routes) == 0 {
		host.Routes = append(host.Routes, everything(s.weights()))
	}
	return &routev3.RouteConfiguration{Name: s.Name, VirtualHosts: []*routev3.VirtualHost{host}}
}

// everything returns a route for all requests.
func everything(to map[string]uint32) *routev3.Route {
	all := &route{Route: &Route{}}
	return &routev3.Route{Match: all.matcher(), Action: &routev3.Route_Route{Route: all.action(to)}}
}

// applicationRoutes returns the routes that send all requests of a service to a proxy's own application. All proxies
// that serve the service share the message.
func (s *service) applicationRoutes() *routev3.RouteConfiguration {
	if s.inner == nil && s.prior != nil {
		s.inner = s.prior.inner
	}
	if s.inner != nil {
		return s.inner
	}
	name := inboundName(s.Name)
	host := &routev3.VirtualHost{Name: name, Domains: []string{"*"},
		Routes: []*routev3.Route{everything(map[string]uint32{name: 1})}}
	s.inner = &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}}
	return s.inner
}

func (r *route) matcher() *routev3.RouteMatch {
	m := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	switch {
	case r.Match.Path != "":
		m.PathSpecifier = &routev3.RouteMatch_Path{Path: r.Match.Path}
	case r.Match.Prefix != "":
		m.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: r.Match.Prefix}
	case r.Match.Regex != "":
		m.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: r.Match.Regex}}
	}
	m.Headers = r.headerMatchers()
	return m
}

// headerMatchers returns the conditions on the method and on headers.
func (r *route) headerMatchers() (out []*routev3.HeaderMatcher) {
	is := func(name, value string) *routev3.HeaderMatcher {
		return &routev3.HeaderMatcher{Name: name,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: exactly(value)}}
	}
	if r.Match.Method != "" {
		out = append(out, is(":method", r.Match.Method))
	}
	for _, name := range r.headers {
		if value := r.Match.Headers[name]; value != "*" {
			out = append(out, is(name, value))
			continue
		}
		out = append(out, &routev3.HeaderMatcher{Name: name,
			HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}})
	}
	return out
}

// action returns an action that sends requests to clusters by weight. Without Timeout there is no limit; Envoy's
// default would be 15 s.
func (r *route) action(to map[string]uint32) *routev3.RouteAction {
	a := &routev3.RouteAction{Timeout: durationpb.New(0), RetryPolicy: r.Retries.policy()}
	if d, err := durationOf(r.Timeout); err == nil {
		a.Timeout = durationpb.New(d)
	}
	if len(to) == 1 {
		a.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: sorted(to)[0]}
		return a
	}
	w := &routev3.WeightedCluster{}
	for _, name := range sorted(to) {
		w.Clusters = append(w.Clusters,
			&routev3.WeightedCluster_ClusterWeight{Name: name, Weight: wrapperspb.UInt32(to[name])})
	}
	a.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: w}
	return a
}

// apart returns true only if it is certain that no request matches both routes.
func (r *route) apart(o *route) bool {
	if r.Match.Method != "" && o.Match.Method != "" && r.Match.Method != o.Match.Method {
		return true
	}
	for _, name := range r.headers {
		a, b := r.Match.Headers[name], o.Match.Headers[name]
		if _, both := o.Match.Headers[name]; both && a != b && a != "*" && b != "*" {
			return true
		}
	}
	if o.Match.Path != "" {
		r, o = o, r
	}
	switch {
	case r.Match.Path != "" && o.Match.Path != "":
		return r.Match.Path != o.Match.Path
	case r.Match.Path != "" && o.Match.Prefix != "":
		return !strings.HasPrefix(r.Match.Path, o.Match.Prefix)
	case r.Match.Path != "" && o.regex != nil:
		return !o.regex.MatchString(r.Match.Path)
	case r.Match.Prefix != "" && o.Match.Prefix != "":
		return !strings.HasPrefix(r.Match.Prefix, o.Match.Prefix) && !strings.HasPrefix(o.Match.Prefix, r.Match.Prefix)
	}
	return false
}
