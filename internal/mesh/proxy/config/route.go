package config

import (
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
)

// What the protocol sets where nothing else is given.
const (
	defaultTimeout = 15 * time.Second // of a request
	defaultRetries = 1
	maxRetries     = 16
)

// rbacFilter is the name under which routes have access rules of their own.
const rbacFilter = "envoy.filters.http.rbac"

// perRouteType is the type of such rules.
const perRouteType = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute"

// Match says which requests a route is for. What is empty matches all.
type Match struct {
	Path    func(path string) bool
	Headers []Condition
	Query   []func(url.Values) bool
	GRPC    bool
}

// Matches says whether the route is for a request.
func (m *Match) Matches(c *Call) bool {
	if !m.Path(c.Path) || m.GRPC && !isGRPC(c.Request.Header.Get("Content-Type")) {
		return false
	}
	for _, holds := range m.Headers {
		if !holds(c) {
			return false
		}
	}
	if len(m.Query) == 0 {
		return true
	}
	values := c.Request.URL.Query()
	for _, holds := range m.Query {
		if !holds(values) {
			return false
		}
	}
	return true
}

func isGRPC(contentType string) bool {
	return contentType == "application/grpc" || strings.HasPrefix(contentType, "application/grpc+")
}

// ParseRoutes reads a RouteConfiguration.
func ParseRoutes(b []byte) (*Routes, error) {
	var m routev3.RouteConfiguration
	if err := translate.Decode(b, &m); err != nil {
		return nil, translate.Refused("routes", translate.Name(b), err)
	}
	r, err := routes(&m)
	if err == nil && r.Name == "" {
		err = translate.In("name", translate.Refuse("is missing"))
	}
	if err != nil {
		return nil, translate.Refused("routes", m.GetName(), err)
	}
	return r, nil
}

func routes(m *routev3.RouteConfiguration) (*Routes, error) {
	if err := translate.Only(m, "name", "virtual_hosts", "validate_clusters",
		"ignore_port_in_host_matching", "metadata",
		"max_direct_response_body_size_bytes"); err != nil {
		return nil, err
	}
	r := &Routes{Name: m.GetName(), IgnorePort: m.GetIgnorePortInHostMatching()}
	domains := map[string]bool{}
	for i, v := range m.GetVirtualHosts() {
		h, err := host(v)
		for _, d := range h.Domains {
			if err == nil && domains[d] {
				err = translate.In("domains", translate.Refuse("%q is given twice", translate.Clip(d)))
			}
			domains[d] = true
		}
		if err != nil {
			return nil, translate.In("virtual_hosts", translate.Item(i, err))
		}
		r.Hosts = append(r.Hosts, h)
	}
	r.prepare()
	return r, nil
}

func host(m *routev3.VirtualHost) (h Host, err error) {
	if err := translate.Only(m, "name", "domains", "routes", "typed_per_filter_config", "require_tls",
		"include_request_attempt_count", "metadata"); err != nil {
		return h, err
	}
	if m.GetRequireTls() != routev3.VirtualHost_NONE {
		return h, translate.In("require_tls", translate.Refuse("is not supported"))
	}
	h.Name = m.GetName()
	for i, d := range m.GetDomains() {
		if d == "" || strings.Count(d, "*") > 1 || strings.Contains(strings.Trim(d, "*"), "*") {
			return h, translate.In(
				"domains",
				translate.Item(i, translate.Refuse("%q is no domain", translate.Clip(d))),
			)
		}
		h.Domains = append(h.Domains, strings.ToLower(d))
	}
	if len(h.Domains) == 0 {
		return h, translate.In("domains", translate.Refuse("is missing"))
	}
	if h.Access, err = overrides(m.GetTypedPerFilterConfig()); err != nil {
		return h, err
	}
	for i, from := range m.GetRoutes() {
		r, err := route(from)
		if err != nil {
			return h, translate.In("routes", translate.Item(i, err))
		}
		h.Routes = append(h.Routes, r)
	}
	return h, nil
}

// overrides reads what a route or a host has instead of a filter's own configuration: access rules, and nothing else.
func overrides(m map[string]*anypb.Any) (*Override, error) {
	var out *Override
	for key, a := range m {
		in := func(err error) error { return translate.In("typed_per_filter_config", translate.In("["+key+"]", err)) }
		if t := translate.TypeOf(a); t != perRouteType || key != rbacFilter {
			return nil, in(translate.Unsupported(key, t))
		}
		var err error
		if out, err = perRoute(a); err != nil {
			return nil, in(err)
		}
	}
	return out, nil
}

func route(m *routev3.Route) (r *Route, err error) {
	if err := translate.Only(m, "name", "match", "route", "direct_response",
		"typed_per_filter_config", "metadata", "decorator",
		"stat_prefix"); err != nil {
		return nil, err
	}
	r = &Route{Name: m.GetName()}
	if r.Match, err = match(m.GetMatch()); err != nil {
		return nil, translate.In("match", err)
	}
	if r.Access, err = overrides(m.GetTypedPerFilterConfig()); err != nil {
		return nil, err
	}
	switch a := m.GetAction().(type) {
	case *routev3.Route_Route:
		return r, translate.In("route", r.action(a.Route, m.GetMatch()))
	case *routev3.Route_DirectResponse:
		return r, translate.In("direct_response", r.direct(a.DirectResponse))
	}
	return nil, translate.In("route", translate.Refuse("is missing"))
}

// maxBody bounds an answer that the proxy gives itself, in bytes.
const maxBody = 4 << 10

func (r *Route) direct(m *routev3.DirectResponseAction) error {
	if err := translate.Only(m, "status", "body"); err != nil {
		return err
	}
	if s := m.GetStatus(); s < 200 || s > 599 {
		return translate.In("status", translate.Refuse("must be 200 to 599, not %d", s))
	}
	r.Direct = &Direct{Status: int(m.GetStatus())}
	if m.GetBody() == nil {
		return nil
	}
	b, err := data(m.GetBody(), false)
	if err == nil && len(b) > maxBody {
		err = translate.Refuse("has %d bytes; the proxy takes %d", len(b), maxBody)
	}
	r.Direct.Body = string(b)
	return translate.In("body", err)
}

func (r *Route) action(m *routev3.RouteAction, of *routev3.RouteMatch) error {
	err := translate.Only(
		m,
		"cluster",
		"weighted_clusters",
		"timeout",
		"retry_policy",
		"host_rewrite_literal",
		"prefix_rewrite",
		"cluster_not_found_response_code",
		"idle_timeout",
		"max_grpc_timeout",
		"max_stream_duration",
		"priority",
		"metadata_match",
	)
	switch {
	case err != nil:
	case m.GetMetadataMatch() != nil:
		err = translate.In("metadata_match", translate.Refuse("is not supported"))
	case m.GetClusterNotFoundResponseCode() != routev3.RouteAction_SERVICE_UNAVAILABLE:
		err = translate.In("cluster_not_found_response_code", translate.Refuse("must be SERVICE_UNAVAILABLE"))
	}
	if err != nil {
		return err
	}
	if err := r.clusters(m); err != nil {
		return err
	}
	if r.Timeout = defaultTimeout; m.GetTimeout() != nil {
		if r.Timeout, err = translate.Duration(m.GetTimeout()); err != nil {
			return translate.In("timeout", err)
		}
	}
	r.Rewrite = Rewrite{Host: m.GetHostRewriteLiteral(), Prefix: m.GetPrefixRewrite()}
	for field, text := range map[string]string{"host_rewrite_literal": r.Rewrite.Host, "prefix_rewrite": r.Rewrite.Prefix} {
		// It goes into the first line or a header of requests: a blank or the end of a line would begin something else.
		if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
			return translate.In(field, translate.Refuse("has a blank or a control character"))
		}
	}
	if r.Rewrite.Prefix != "" {
		switch p := of.GetPathSpecifier().(type) {
		case *routev3.RouteMatch_Prefix:
			r.Rewrite.Match = len(p.Prefix)
		case *routev3.RouteMatch_Path:
			r.Rewrite.Match = len(p.Path)
		case *routev3.RouteMatch_PathSeparatedPrefix:
			r.Rewrite.Match = len(p.PathSeparatedPrefix)
		default:
			return translate.In("prefix_rewrite", translate.Refuse("is for routes by path or prefix"))
		}
	}
	return translate.In("retry_policy", r.retry(m.GetRetryPolicy()))
}

func (r *Route) clusters(m *routev3.RouteAction) error {
	w := m.GetWeightedClusters()
	if w == nil {
		if m.GetCluster() == "" {
			return translate.In("cluster", translate.Refuse("is missing"))
		}
		r.Clusters = []mesh.WeightedCluster{{Name: m.GetCluster(), Weight: 1}}
		return nil
	}
	if err := translate.Only(w, "clusters", "total_weight"); err != nil {
		return translate.In("weighted_clusters", err)
	}
	total := uint64(0)
	for i, c := range w.GetClusters() {
		err := translate.Only(c, "name", "weight")
		if err == nil && c.GetName() == "" {
			err = translate.In("name", translate.Refuse("is missing"))
		}
		if total += uint64(c.GetWeight().GetValue()); err == nil && total > math.MaxUint32 {
			err = translate.In("weight", translate.Refuse("the weights of all clusters are too much for 32 bits"))
		}
		if err != nil {
			return translate.In("weighted_clusters", translate.In("clusters", translate.Item(i, err)))
		}
		if c.GetWeight().GetValue() > 0 {
			r.Clusters = append(r.Clusters, mesh.WeightedCluster{Name: c.GetName(), Weight: c.GetWeight().GetValue()})
		}
	}
	if total == 0 {
		return translate.In("weighted_clusters", translate.Refuse("the weights must come to 1 or more"))
	}
	return nil
}

// retry reads when a request is sent once more.
func (r *Route) retry(m *routev3.RetryPolicy) (err error) {
	if m == nil {
		return nil
	}
	if err := translate.Only(m, "retry_on", "num_retries", "per_try_timeout",
		"retriable_status_codes", "retry_back_off",
		"host_selection_retry_max_attempts", "retry_host_predicate"); err != nil {
		return err
	}
	r.Retry.Attempts = defaultRetries
	if n := m.GetNumRetries(); n != nil {
		if n.GetValue() > maxRetries {
			return translate.In(
				"num_retries",
				translate.Refuse("must be at most %d, not %d", maxRetries, n.GetValue()),
			)
		}
		r.Retry.Attempts = int(n.GetValue())
	}
	if r.Retry.PerTry, err = translate.Duration(m.GetPerTryTimeout()); err != nil {
		return translate.In("per_try_timeout", err)
	}
	var tests []func(int) bool
	for _, word := range strings.Split(m.GetRetryOn(), ",") {
		switch word = strings.TrimSpace(word); word {
		case "":
		case "5xx":
			r.Retry.Connect, r.Retry.Reset = true, true
			tests = append(tests, func(s int) bool { return s >= 500 })
		case "gateway-error":
			r.Retry.Connect, r.Retry.Reset = true, true
			tests = append(tests, func(s int) bool { return s >= 502 && s <= 504 })
		case "reset":
			r.Retry.Connect, r.Retry.Reset = true, true
		case "reset-before-request", "connect-failure":
			r.Retry.Connect = true
		case "refused-stream":
			r.Retry.Reset = true
		case "retriable-4xx":
			tests = append(tests, func(s int) bool { return s == http.StatusConflict })
		case "unavailable", "cancelled", "deadline-exceeded", "internal", "resource-exhausted":
			// Of gRPC: its status comes after the body, which the client has by then.
		case "retriable-status-codes":
			tests = append(tests, func(s int) bool {
				for _, code := range m.GetRetriableStatusCodes() {
					if uint32(s) == code {
						return true
					}
				}
				return false
			})
		default:
			return translate.In("retry_on", translate.Refuse("%q is not supported", translate.Clip(word)))
		}
	}
	r.Retry.Statuses = func(s int) bool {
		for _, t := range tests {
			if t(s) {
				return true
			}
		}
		return false
	}
	return nil
}

func match(m *routev3.RouteMatch) (out Match, err error) {
	if err := translate.Only(m, "prefix", "path", "safe_regex", "path_separated_prefix", "case_sensitive", "headers",
		"query_parameters", "grpc"); err != nil {
		return out, err
	}
	fold := m.GetCaseSensitive() != nil && !m.GetCaseSensitive().GetValue()
	hasPrefix := func(s, prefix string) bool {
		return len(s) >= len(prefix) &&
			(s[:len(prefix)] == prefix || fold && strings.EqualFold(s[:len(prefix)], prefix))
	}
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		out.Path = func(s string) bool { return hasPrefix(s, p.Prefix) }
	case *routev3.RouteMatch_Path:
		out.Path = exact(p.Path, fold)
	case *routev3.RouteMatch_PathSeparatedPrefix:
		out.Path = func(s string) bool {
			return hasPrefix(s, p.PathSeparatedPrefix) &&
				(len(s) == len(p.PathSeparatedPrefix) || s[len(p.PathSeparatedPrefix)] == '/')
		}
	case *routev3.RouteMatch_SafeRegex:
		t, err := pattern(p.SafeRegex)
		if err != nil {
			return out, translate.In("safe_regex", err)
		}
		out.Path = t
	default:
		return out, translate.Refuse("there is no path, prefix or regular expression")
	}
	for i, h := range m.GetHeaders() {
		c, err := header(h)
		if err != nil {
			return out, translate.In("headers", translate.Item(i, err))
		}
		out.Headers = append(out.Headers, c)
	}
	for i, q := range m.GetQueryParameters() {
		c, err := query(q)
		if err != nil {
			return out, translate.In("query_parameters", translate.Item(i, err))
		}
		out.Query = append(out.Query, c)
	}
	if m.GetGrpc() != nil {
		out.GRPC = true
		err = translate.In("grpc", translate.Only(m.GetGrpc()))
	}
	return out, err
}

func query(m *routev3.QueryParameterMatcher) (func(url.Values) bool, error) {
	if err := translate.Only(m, "name", "string_match", "present_match"); err != nil {
		return nil, err
	}
	if m.GetStringMatch() == nil {
		return func(v url.Values) bool { return v.Has(m.GetName()) }, nil
	}
	t, err := text(m.GetStringMatch())
	return func(v url.Values) bool { return v.Has(m.GetName()) && t(v.Get(m.GetName())) }, translate.In(
		"string_match",
		err,
	)
}

type headerMatcher = *routev3.HeaderMatcher

// header reads a condition on a header of a request, or on one of HTTP/2's own names for parts of the first line.
func header(m headerMatcher) (Condition, error) {
	if err := translate.Only(m, "name", "exact_match", "safe_regex_match",
		"range_match", "present_match", "prefix_match",
		"suffix_match", "contains_match", "string_match", "invert_match", "treat_missing_header_as_empty"); err != nil {
		return nil, err
	}
	if m.GetName() == "" {
		return nil, translate.In("name", translate.Refuse("is missing"))
	}
	t, err := headerText(m)
	if err != nil {
		return nil, err
	}
	value := headerValue(m.GetName())
	wantPresent := true
	if p, ok := m.GetHeaderMatchSpecifier().(*routev3.HeaderMatcher_PresentMatch); ok {
		wantPresent = p.PresentMatch
	}
	invert, asEmpty := m.GetInvertMatch(), m.GetTreatMissingHeaderAsEmpty()
	return func(c *Call) bool {
		v, there := value(c)
		if t == nil {
			return (there == wantPresent) != invert
		}
		if !there && !asEmpty {
			return invert // what is not there matches nothing
		}
		return t(v) != invert
	}, nil
}

// headerText is the condition on a header's value; nil where only its presence counts.
func headerText(m headerMatcher) (Text, error) {
	switch h := m.GetHeaderMatchSpecifier().(type) {
	case nil, *routev3.HeaderMatcher_PresentMatch:
		return nil, nil
	case *routev3.HeaderMatcher_StringMatch:
		t, err := text(h.StringMatch)
		return t, translate.In("string_match", err)
	case *routev3.HeaderMatcher_ExactMatch:
		want := h.ExactMatch //nolint:staticcheck // deprecated: control planes may still send it
		return exact(want, false), nil
	case *routev3.HeaderMatcher_PrefixMatch:
		want := h.PrefixMatch //nolint:staticcheck // deprecated: the same
		return func(s string) bool { return strings.HasPrefix(s, want) }, nil
	case *routev3.HeaderMatcher_SuffixMatch:
		want := h.SuffixMatch //nolint:staticcheck // deprecated: the same
		return func(s string) bool { return strings.HasSuffix(s, want) }, nil
	case *routev3.HeaderMatcher_ContainsMatch:
		want := h.ContainsMatch //nolint:staticcheck // deprecated: the same
		return func(s string) bool { return strings.Contains(s, want) }, nil
	case *routev3.HeaderMatcher_SafeRegexMatch:
		t, err := pattern(h.SafeRegexMatch) //nolint:staticcheck // deprecated: the same
		return t, translate.In("safe_regex_match", err)
	case *routev3.HeaderMatcher_RangeMatch:
		return func(s string) bool {
			n, err := strconv.ParseInt(s, 10, 64)
			return err == nil && n >= h.RangeMatch.GetStart() && n < h.RangeMatch.GetEnd()
		}, nil
	}
	return nil, translate.Refuse("is not supported")
}

// headerValue finds a header of a request: its values joined by a comma, as one line would have them.
func headerValue(name string) func(*Call) (string, bool) {
	switch name = strings.ToLower(name); name {
	case ":method":
		return func(c *Call) (string, bool) { return c.Request.Method, true }
	case ":path":
		return func(c *Call) (string, bool) {
			if q := c.Request.URL.RawQuery; q != "" || c.Request.URL.ForceQuery {
				return c.Path + "?" + q, true
			}
			return c.Path, true
		}
	case ":authority", "host":
		return func(c *Call) (string, bool) { return c.Request.Host, true }
	case ":scheme":
		return func(c *Call) (string, bool) {
			if c.Request.TLS != nil {
				return "https", true
			}
			return "http", true
		}
	}
	key := http.CanonicalHeaderKey(name)
	return func(c *Call) (string, bool) {
		v, ok := c.Request.Header[key]
		if len(v) == 1 {
			return v[0], ok
		}
		return strings.Join(v, ","), ok
	}
}
