package mesh

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Rule is one rule of a listener. The first rule that matches a connection decides what happens to it. Every store
// answers lookups by these rules.
type Rule struct {
	Source, Destination           netip.Prefix // the zero prefix: any
	SourcePorts, DestinationPorts PortRange    // the zero range: any
	// Chain is the index in Listener.Chains of the chain that gets the connection. len(Chains) stands for
	// Listener.Default; a negative value means that the connection is denied.
	Chain int
}

// Denied is the Chain of a rule that denies connections.
const Denied = -1

// MaxRules is the maximum number of rules of a listener. eBPF programs check them one by one.
const MaxRules = 32

// Rules returns the chains of l and their RBAC as rules, in the order in which they are checked; within a chain,
// denials come first. A connection that no rule matches is refused. Rules that follow one that matches every connection
// are omitted.
//
// Chains are found as Envoy finds them: by destination port, then destination prefix, then source prefix, then source
// port, each time by the most specific value that matches. There is no backtracking: if a chain for the port, or for
// the longest prefix, exists but does not match in a later step, the default chain gets the connection, not a less
// specific chain. Only in the last step does Envoy fall back: to a chain that accepts any source port.
// (FilterChainManagerImpl::findFilterChain of Envoy, and "FilterChainMatch" in its API reference.)
func (l *Listener) Rules() ([]Rule, error) {
	if l.trivial() {
		return everything, nil
	}
	var out []Rule
	var all []matched
	for i := range l.Chains {
		// Check the number before multiplying the lists: otherwise a control plane could make this process run out of memory.
		m := &l.Chains[i].Match
		if len(all)+combinations(len(m.Destinations), len(m.Sources), len(m.SourcePorts)) > MaxRules {
			return nil, l.tooMany()
		}
		for _, r := range m.rules() {
			all = append(all, matched{rule: r, chain: i})
		}
	}
	all = ends(all, len(l.Chains))
	if l.Default != nil {
		all = append(all, matched{rule: Rule{}, chain: len(l.Chains)})
	}
	for _, m := range all {
		rules, err := l.Chain(m.chain).rules(m.rule, m.chain)
		if err != nil {
			return nil, fmt.Errorf("listener %s: %w", l.Name, err)
		}
		if out = append(out, rules...); len(out) > MaxRules {
			return nil, l.tooMany()
		}
	}
	if i := slices.IndexFunc(out, Rule.MatchesAll); i >= 0 {
		out = out[:i+1]
	}
	return out, nil
}

func (l *Listener) tooMany() error {
	return fmt.Errorf("listener %s: its filter chains and RBAC policies come to more than the %d rules that a "+
		"listener can have", l.Name, MaxRules)
}

// combinations returns the number of ways to take one element from each of several lists, given their lengths. An empty
// list counts as one element. If the number exceeds MaxRules, the result may be any number above MaxRules.
func combinations(lengths ...int) int {
	n := 1
	for _, length := range lengths {
		if n *= max(1, min(length, MaxRules+1)); n > MaxRules {
			return n
		}
	}
	return n
}

// matched is one of the rules that the match of a chain expands to, or one that ends adds.
type matched struct {
	rule  Rule
	chain int  // as in Rule.Chain
	end   bool // added by ends: it sends the rest of a group to the default chain
}

// ends sorts the matches of chains, most specific first. Envoy does not backtrack, so after each group of matches with
// the same port or prefix, ends adds a rule that sends the group's other connections to the default chain, whose index
// is last. It omits that rule if no later match could get those connections.
func ends(all []matched, last int) []matched {
	n := len(all)
	for _, m := range all[:n] {
		r := m.rule
		r.SourcePorts = PortRange{}
		if bits(r.Source) > 0 {
			all = append(all, matched{r, last, true})
		}
		r.Source = netip.Prefix{}
		if bits(r.Destination) > 0 {
			all = append(all, matched{r, last, true})
		}
		r.Destination = netip.Prefix{}
		if !r.DestinationPorts.any() {
			all = append(all, matched{r, last, true})
		}
	}
	slices.SortStableFunc(all, func(a, b matched) int { return moreSpecial(a.rule, b.rule) })
	out := all[:0]
	for i, m := range all {
		if !m.end || !slices.ContainsFunc(out, func(o matched) bool { return o.rule == m.rule }) &&
			slices.ContainsFunc(all[i+1:], func(o matched) bool { return !o.end && o.rule.overlaps(m.rule) }) {
			out = append(out, m)
		}
	}
	return out
}

// everything holds the rules of a listener whose first chain gets every connection.
var everything = []Rule{{}}

// trivial reports whether l has chains, all of which match every connection, and no RBAC. The first chain then gets
// every connection. With MaxRules chains or more, trivial returns false, and Rules counts the rules.
func (l *Listener) trivial() bool {
	for i := range l.Chains {
		if c := &l.Chains[i]; !c.Match.Any() || len(c.RBAC) > 0 {
			return false
		}
	}
	return len(l.Chains) > 0 && len(l.Chains) < MaxRules && (l.Default == nil || len(l.Default.RBAC) == 0)
}

// Any reports whether m matches every connection.
func (m *Match) Any() bool {
	return m.DestinationPort == 0 && len(m.Destinations) == 0 && len(m.Sources) == 0 && len(m.SourcePorts) == 0
}

// rules returns the match as rules, one for each combination of its prefixes and source ports.
func (m *Match) rules() (out []Rule) {
	ports := []PortRange{{}}
	if len(m.SourcePorts) > 0 {
		ports = nil
		for _, p := range m.SourcePorts {
			ports = append(ports, PortRange{p, p})
		}
	}
	var to PortRange
	if m.DestinationPort != 0 {
		to = PortRange{m.DestinationPort, m.DestinationPort}
	}
	for _, d := range orAny(m.Destinations) {
		for _, s := range orAny(m.Sources) {
			for _, p := range ports {
				out = append(out, Rule{Source: s.Masked(), Destination: d.Masked(), SourcePorts: p, DestinationPorts: to})
			}
		}
	}
	return out
}

// moreSpecial orders matches as Envoy looks for a chain: it returns a negative number if Envoy tries a before b.
func moreSpecial(a, b Rule) int {
	return cmp.Or(
		-cmp.Compare(min(a.DestinationPorts.To, 1), min(b.DestinationPorts.To, 1)), // only whether a port is given matters
		-cmp.Compare(bits(a.Destination), bits(b.Destination)),
		-cmp.Compare(bits(a.Source), bits(b.Source)),
		-cmp.Compare(min(a.SourcePorts.To, 1), min(b.SourcePorts.To, 1)),
	)
}

// bits returns the length of a prefix. A missing prefix counts as one of length 0, as in Envoy.
func bits(p netip.Prefix) int { return max(0, p.Bits()) }

// rules returns the rules for connections that m matches. If there are more than MaxRules, it returns only some of
// them, but still more than MaxRules.
func (c *Chain) rules(m Rule, chain int) (out []Rule, err error) {
	m.Chain = chain
	allowed, last := []Rule{m}, m
	allows := 0
	for _, r := range c.RBAC {
		if r.Deny {
			for i := 0; i < len(r.Policies) && len(out) <= MaxRules; i++ {
				for _, d := range r.Policies[i].within(m) {
					d.Chain = Denied
					out = append(out, d)
				}
			}
			continue
		}
		if allows++; allows > 1 {
			return nil, fmt.Errorf("filter chain %s: more than one RBAC filter that allows: give one with the policies of all",
				c.Name)
		}
		allowed = nil
		for i := 0; i < len(r.Policies) && len(allowed) <= MaxRules; i++ {
			allowed = append(allowed, r.Policies[i].within(m)...)
		}
	}
	out = append(out, allowed...)
	if allows > 0 {
		last.Chain = Denied
		out = append(out, last)
	}
	return out, nil
}

// within returns rules for the connections that both p and m match, at most MaxRules + 1.
func (p *Principal) within(m Rule) (out []Rule) {
	of := Principal{Sources: []netip.Prefix{m.Source}, Destinations: []netip.Prefix{m.Destination},
		SourcePorts: []PortRange{m.SourcePorts}, DestinationPorts: []PortRange{m.DestinationPorts}}
	both, ok := of.And(p)
	if !ok {
		return nil
	}
	for _, m.Destination = range both.Destinations {
		for _, m.Source = range both.Sources {
			for _, m.SourcePorts = range both.SourcePorts {
				for _, m.DestinationPorts = range both.DestinationPorts {
					if out = append(out, m); len(out) > MaxRules {
						return out
					}
				}
			}
		}
	}
	return out
}

// And returns a principal, without a name, that matches what both p and q match; ok is false if nothing can match
// both.
func (p *Principal) And(q *Principal) (both Principal, ok bool) {
	var some [4]bool
	both.Sources, some[0] = common(p.Sources, q.Sources, narrow)
	both.Destinations, some[1] = common(p.Destinations, q.Destinations, narrow)
	both.SourcePorts, some[2] = common(p.SourcePorts, q.SourcePorts, (*PortRange).narrow)
	both.DestinationPorts, some[3] = common(p.DestinationPorts, q.DestinationPorts, (*PortRange).narrow)
	return both, !slices.Contains(some[:], false)
}

// common returns the intersection of two lists, where an empty list stands for everything. The result some is false if
// the intersection is empty.
func common[T any](a, b []T, narrow func(*T, T) bool) (both []T, some bool) {
	switch {
	case len(a) == 0:
		return b, true
	case len(b) == 0:
		return a, true
	}
	for _, x := range a {
		for _, y := range b {
			if one := x; narrow(&one, y) {
				both = append(both, one)
			}
		}
	}
	return both, len(both) > 0
}

// orAny returns list or, if it is empty, a list of one zero value, which matches anything.
func orAny[T any](list []T) []T {
	if len(list) == 0 {
		return make([]T, 1)
	}
	return list
}

// overlaps reports whether some connection matches both rules.
func (r Rule) overlaps(o Rule) bool {
	return narrow(&r.Source, o.Source) && narrow(&r.Destination, o.Destination) && r.SourcePorts.narrow(o.SourcePorts) &&
		r.DestinationPorts.narrow(o.DestinationPorts)
}

// narrow sets p to the intersection of p and by, and reports whether they intersect. The zero prefix matches any
// address.
func narrow(p *netip.Prefix, by netip.Prefix) bool {
	switch {
	case !by.IsValid():
		return true
	case !p.IsValid():
		*p = by.Masked()
		return true
	case !p.Overlaps(by):
		return false
	case by.Bits() > p.Bits():
		*p = by.Masked()
	}
	return true
}

func (r *PortRange) any() bool { return r.From == 0 && r.To == 0 }

func (r *PortRange) narrow(by PortRange) bool {
	switch {
	case by.any():
		return true
	case r.any():
		*r = by
		return true
	}
	r.From, r.To = max(r.From, by.From), min(r.To, by.To)
	return r.From <= r.To
}

// MatchesAll reports whether the rule matches every connection.
func (r Rule) MatchesAll() bool { return r == Rule{Chain: r.Chain} }

// Matches reports whether the rule matches a connection from one address to another. The zero address is an unknown
// source: it matches only rules without a condition on the source.
func (r *Rule) Matches(from, to netip.AddrPort) bool {
	return inPrefix(r.Source, from.Addr()) && inPrefix(r.Destination, to.Addr()) && r.SourcePorts.has(from.Port()) &&
		r.DestinationPorts.has(to.Port())
}

func inPrefix(p netip.Prefix, a netip.Addr) bool {
	return !p.IsValid() || a.IsValid() && p.Contains(a.Unmap())
}

func (r *PortRange) has(p uint16) bool { return r.any() || r.From <= p && p <= r.To }
