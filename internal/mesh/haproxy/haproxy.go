// Package haproxy is HAProxy as the sidecars of a mesh, configured by a file.
package haproxy

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"tare/internal/experiment/process"
	"tare/internal/lib/text"
	"tare/internal/mesh/sidecar"
)

func init() { sidecar.Register(proxy{}) }

// proxy is HAProxy as package sidecar knows it.
type proxy struct{}

func (proxy) About() sidecar.About {
	return sidecar.About{
		Name: "haproxy", Summary: "HAProxy as sidecars, configured by a file", Program: "haproxy",
		Hint: "install it (apt-get install haproxy)",
	}
}

var version = text.LazyRegexp(`^HA-?Proxy version (\S+)`)

func (proxy) Version(ctx context.Context, program string) string {
	if m := version().FindStringSubmatch(process.FirstLine(ctx, program, "-v")); m != nil {
		return m[1]
	}
	return ""
}

// The files in a proxy's directory, beside those of its certificate. HAProxy works there, so that its configuration
// names no path, and has nothing in it that is not Tare's own: addresses, numbers and hexadecimal digits.
const (
	configFile = "haproxy.cfg"
	statsFile  = "stats.sock"
)

func (proxy) Command(p sidecar.Place) (process.Command, error) {
	if err := sidecar.WriteFile(p.Dir, configFile, []byte(config(p))); err != nil {
		return process.Command{}, err
	}
	return process.Command{
		// In the foreground, as one process whose threads are its workers.
		Argv: []string{p.Program, "-db", "-f", configFile},
		Dir:  p.Dir,
	}, nil
}

// How all proxies speak TLS: see docs/mesh-proxies.md, which says for each what stands for this.
const (
	cipherSuite = "TLS_AES_128_GCM_SHA256"
	curve       = "X25519"
)

// config is the configuration of a proxy. Nothing is logged: there is no "log".
func config(p sidecar.Place) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("global")
	line("  maxconn %d", p.Connections)
	line("  nbthread %d", p.Workers)
	if p.User != "" {
		line("  uid %d", p.UID)
		line("  gid %d", p.GID)
	}
	line("  stats socket unix@%s mode 600 level operator", statsFile)
	line("  tune.ssl.cachesize 0")
	// By default it closes idle connections to servers while more than a quarter of its file descriptors are in use, and
	// many clients then cost a handshake for each request.
	line("  tune.pool-low-fd-ratio 100")
	line("  tune.pool-high-fd-ratio 100")
	line("defaults")
	line("  mode %s", modeOf(p))
	line("  timeout connect 5s")
	line("  timeout client %s", idle)
	line("  timeout server %s", idle)
	line("  retries 0")
	if modeOf(p) == modeHTTP {
		line("  timeout http-keep-alive %s", idle)
		line("  http-reuse always")
	}
	line("frontend in")
	line("  bind %s%s%s", p.Listen, transparent(p), acceptTLS(p))
	if from, err := netip.ParseAddrPort(p.From); err == nil {
		// HAProxy asks the kernel where the connection was going (SO_ORIGINAL_DST) for these.
		line("  tcp-request connection reject unless { dst %s } { dst_port %d }", from.Addr(), from.Port())
	}
	switch {
	case len(p.Rules) > 0:
		// Who calls is found out once for each connection, behind the handshake, and judged for each request.
		line("  tcp-request session set-var(sess.caller) ssl_c_der,hex")
		for _, id := range p.Rules {
			line("  http-request allow if { var(sess.caller) -m sub %s }", uriInDER(id))
		}
		line("  http-request deny")
	case p.AcceptTLS: // once for each connection, behind the handshake
		line("  tcp-request session reject unless { ssl_c_der,hex -m sub %s }", uriInDER(p.Peer))
	}
	line("  default_backend out")
	line("backend out")
	line("  server to %s pool-purge-delay %s%s", p.To, idle, dialTLS(p)) // idle connections stay open
	for _, o := range p.Others {
		if o.Listen != "" {
			line("frontend in-%s", o.Name)
			line("  bind %s%s", o.Listen, acceptTLS(p))
			line("  default_backend %s", o.Name)
		}
		line("backend %s", o.Name)
		line("  server to %s pool-purge-delay %s%s", o.To, idle, dialTLS(p))
	}
	return b.String()
}

// idle is how long connections stay open on which nothing happens, in HAProxy's form.
const idle = "1h"

// transparent has the socket take packets to addresses that are not this host's.
func transparent(p sidecar.Place) string {
	if !p.Transparent {
		return ""
	}
	return " transparent"
}

// The modes of HAProxy: it understands requests, whatever version of HTTP they come by, or carries bytes.
const (
	modeHTTP = "http"
	modeTCP  = "tcp"
)

func modeOf(p sidecar.Place) string {
	if p.Protocol == sidecar.ProtocolTCP {
		return modeTCP
	}
	return modeHTTP
}

// spoken is what a side speaks: agreed on in the handshake where there is one, and else known before.
func spoken(p sidecar.Place, tls bool) string {
	switch {
	case modeOf(p) == modeTCP:
		return ""
	case tls && sidecar.OverHTTP2(p.Protocol):
		return " alpn h2"
	case tls:
		return " alpn http/1.1"
	case sidecar.OverHTTP2(p.Protocol):
		return " proto h2"
	}
	return ""
}

func acceptTLS(p sidecar.Place) string {
	if !p.AcceptTLS {
		return spoken(p, false)
	}
	return fmt.Sprintf(" ssl crt %s ca-file %s verify required ssl-min-ver TLSv1.3 ciphersuites %s curves %s "+
		"no-tls-tickets%s", sidecar.IdentityFile, sidecar.RootsFile, cipherSuite, curve, spoken(p, true))
}

func dialTLS(p sidecar.Place) string {
	if !p.DialTLS {
		return spoken(p, false)
	}
	return fmt.Sprintf(" ssl crt %s ca-file %s verify required verifyhost %s sni str(%s) ssl-min-ver TLSv1.3 "+
		"ciphersuites %s no-tls-tickets no-ssl-reuse%s",
		sidecar.IdentityFile, sidecar.RootsFile, p.PeerName, p.PeerName, cipherSuite, spoken(p, true))
}

// uriInDER is a URI as it stands among the alternative names of a certificate, in hexadecimal digits as HAProxy writes
// them: HAProxy 2.6 can look for that, and not for the name itself. The length before it makes it whole: a longer name
// that begins so has another. (RFC 5280, section 4.2.1.6: uniformResourceIdentifier is [6] IA5String.)
func uriInDER(uri string) string {
	const uniformResourceIdentifier = 0x86
	header := []byte{uniformResourceIdentifier}
	switch n := len(uri); {
	case n < 0x80:
		header = append(header, byte(n))
	case n < 0x100:
		header = append(header, 0x81, byte(n))
	default:
		header = append(header, 0x82, byte(n>>8), byte(n))
	}
	return strings.ToUpper(hex.EncodeToString(append(header, uri...)))
}
