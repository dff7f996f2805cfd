package config

import (
	"cmp"
	"net"
	"slices"
	"strings"
)

// index finds the host of a request.
type index struct {
	exact    map[string]*Host
	suffixes []wildcard // the longest first
	prefixes []wildcard // the longest first
	any      *Host
}

type wildcard struct {
	text string
	host *Host
}

// prepare makes the routes ready to be searched.
func (r *Routes) prepare() {
	r.index.exact = map[string]*Host{}
	for i := range r.Hosts {
		h := &r.Hosts[i]
		for _, d := range h.Domains {
			switch {
			case d == "*":
				r.index.any = h
			case d[0] == '*':
				r.index.suffixes = append(r.index.suffixes, wildcard{d[1:], h})
			case d[len(d)-1] == '*':
				r.index.prefixes = append(r.index.prefixes, wildcard{d[:len(d)-1], h})
			default:
				r.index.exact[d] = h
			}
		}
	}
	slices.SortStableFunc(r.index.suffixes, longestFirst)
	slices.SortStableFunc(r.index.prefixes, longestFirst)
}

// longestFirst compares wildcards by their length. Those of the same length stay in the order of the configuration.
func longestFirst(a, b wildcard) int { return cmp.Compare(len(b.text), len(a.text)) }

// Find is the host of a request, and its first route that matches; nil where there is none. As in Envoy, an exact
// domain goes before the longest suffix, that before the longest prefix, and that before "*".
func (r *Routes) Find(c *Call) (*Host, *Route) {
	h := r.host(c.Request.Host)
	if h == nil {
		return nil, nil
	}
	for _, route := range h.Routes {
		if route.Match.Matches(c) {
			return h, route
		}
	}
	return h, nil
}

func (r *Routes) host(name string) *Host {
	x := &r.index
	if len(x.exact)+len(x.suffixes)+len(x.prefixes) == 0 {
		return x.any
	}
	name = strings.ToLower(name)
	if r.IgnorePort {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
	}
	if h := x.exact[name]; h != nil {
		return h
	}
	for _, w := range x.suffixes {
		if len(name) > len(w.text) && strings.HasSuffix(name, w.text) {
			return w.host
		}
	}
	for _, w := range x.prefixes {
		if len(name) > len(w.text) && strings.HasPrefix(name, w.text) {
			return w.host
		}
	}
	return x.any
}
