// Package config is what the proxy does, read from Envoy's resources and checked: listeners, routes, clusters and
// secrets. What the proxy cannot do is refused by resource and field. It is pure, and takes hostile input.
package config

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
)

// Listener is an address that the proxy listens at.
type Listener struct {
	Name    string
	Address netip.AddrPort
	Chains  []*Chain
	Default *Chain // for what no chain is for; nil: it is closed
	// Hello is for how long a client may take to say how it begins, where chains differ by that; 0: as long as a TLS
	// handshake may take. Continue has a client that says nothing for so long count as one that does not begin with
	// TLS.
	Hello    time.Duration
	Continue bool
	// Original has chains be chosen by where clients connected to, before they were redirected here. Transparent lets
	// the socket take connections to addresses that this host does not have (IP_TRANSPARENT).
	Original, Transparent bool
}

// Transport is how a client begins.
type Transport uint8

// The ways to begin. Any is for what no other chain is for.
const (
	Any Transport = iota
	TLS
	Plain
)

// Chain is what happens to some connections of a listener. One with neither TCP nor HTTP closes them at once.
type Chain struct {
	Name   string
	For    Selection
	TLS    *ServerTLS // nil: the connection is not encrypted
	Access []*Access  // all of them must let a connection pass, before anything is sent
	TCP    *TCP
	HTTP   *HTTP
}

// ServerTLS is how the proxy is a TLS server. Identity and Roots are names of secrets.
type ServerTLS struct {
	Identity   string
	Roots      string // by which clients' certificates are verified; empty: they are not
	Require    bool   // a client without a certificate is refused
	Names      []Text // one must match one of the client's names; none: every verified client may connect
	Protocols  []string
	MinVersion uint16
	Curves     []tls.CurveID // empty: crypto/tls chooses
	NoTickets  bool          // no session can be resumed
	Key        string        // the same for two that are the same: names are conditions, which cannot be compared
}

// ClientTLS is how the proxy is a TLS client.
type ClientTLS struct {
	Identity   string // empty: the proxy has no certificate of its own
	Roots      string // empty: the server's certificate is not verified
	Names      []Text // one must match one of the server's names; none: every verified server will do
	ServerName string // that the server is told (SNI)
	Protocols  []string
	MinVersion uint16
	Curves     []tls.CurveID
	Sessions   int    // that are kept, to be resumed
	Key        string // as that of a server
}

// TCP is a proxy of connections.
type TCP struct {
	Clusters []mesh.WeightedCluster
	Idle     time.Duration // a connection on which nothing moves for so long is ended; 0: never
	Attempts int           // to connect to an endpoint
}

// HTTP is a proxy of requests.
type HTTP struct {
	RouteName   string  // of the routes that come as a resource of their own
	Routes      *Routes // where they stand in the listener
	Access      []*Access
	IdleTimeout time.Duration // of connections without requests
	HeadTimeout time.Duration // until a request's head is there
	StreamIdle  time.Duration // of a request on which nothing moves; 0: for ever
	MaxHead     int           // bytes of a request's head
	MaxStreams  uint32        // of one HTTP/2 connection
	// Paths are made plain before anything looks at them: dots resolved, slashes merged; Reject has those with an
	// escaped slash refused, which an application may take for one.
	Normalize, Merge, Reject bool
	Edge                     bool // what clients say of themselves is not believed
}

// Routes say where requests go.
type Routes struct {
	Name       string
	Hosts      []Host
	IgnorePort bool // of the host that a request names
	index      index
}

// Host is the routes of some domains, of which the first that matches is taken.
type Host struct {
	Name    string
	Domains []string // exact, "*.suffix", "prefix.*" or "*"
	Routes  []*Route
	Access  *Override
}

// Route is where some requests go.
type Route struct {
	Name     string
	Match    Match
	Clusters []mesh.WeightedCluster
	Direct   *Direct // answer instead
	Timeout  time.Duration
	Retry    Retry
	Rewrite  Rewrite
	Access   *Override
}

// Override stands in the place of the access rules of a listener, for some routes. Without rules it lets all pass.
type Override struct{ Access *Access }

// Direct is an answer that the proxy gives itself.
type Direct struct {
	Status int
	Body   string
}

// Rewrite is what changes of a request on its way; what is empty stays.
type Rewrite struct {
	Host   string
	Prefix string
	// Match is the length of what Prefix stands for.
	Match int
}

// Retry is when a request is sent once more. Only requests without a body are.
type Retry struct {
	Attempts int // beside the first
	PerTry   time.Duration
	Connect  bool // the connection could not be made
	Reset    bool // it ended before the response began
	Statuses func(int) bool
}

// Cluster is a set of endpoints, and how to speak to them. Which endpoints it has may have to be found yet.
type Cluster struct {
	*translate.Cluster
	ConnectTimeout time.Duration
	MaxConnections int           // 0: no limit
	IdleTimeout    time.Duration // of connections that are kept
	HTTP2          bool
	TLS            *ClientTLS
}

// Secret is a certificate with its key, or the roots by which others are verified.
type Secret struct {
	Name        string
	Certificate *tls.Certificate
	Roots       *x509.CertPool
	Trust       [sha256.Size]byte // of Roots: a digest of what they were read from
}

// Call is what access rules and routes look at: a connection, and a request where there is one.
type Call struct {
	Names         []string // of the client's verified certificate: its URIs, else its DNS names, else its subject
	Authenticated bool     // the client has shown a certificate that was verified
	ServerName    string
	Remote, Local netip.AddrPort
	Request       *http.Request // nil at connection level
	Path          string        // of the request, as it is on the wire, without its query
}

// Condition says whether something holds for a call.
type Condition func(*Call) bool

// Access lets calls pass, or not (RBAC of Envoy).
type Access struct {
	Deny     bool // a call that a policy matches does not pass; else only such calls do
	Policies []Policy
}

// Policy matches where both conditions hold.
type Policy struct {
	Name     string
	To, From Condition
}

// Passes says whether the rules let a call pass.
func (a *Access) Passes(c *Call) bool {
	for i := range a.Policies {
		if p := &a.Policies[i]; p.To(c) && p.From(c) {
			return !a.Deny
		}
	}
	return a.Deny
}

// Pass says whether all of the rules let a call pass.
func Pass(list []*Access, c *Call) bool {
	return !slices.ContainsFunc(list, func(a *Access) bool { return !a.Passes(c) })
}
