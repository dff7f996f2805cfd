// Package haproxy runs HAProxy as the sidecars of a mesh, configured by a file.
package haproxy

import (
	_ "embed"
	"encoding/hex"
	"net/netip"
	"strings"
	"text/template"

	"tare/internal/experiment/process"
	"tare/internal/lib/text"
	"tare/internal/mesh/sidecar"
)

func init() { sidecar.Register(proxy{}) }

// proxy implements sidecar.Proxy.
type proxy struct{}

func (proxy) About() sidecar.About {
	return sidecar.About{
		Name: "haproxy", Summary: "HAProxy as sidecars, configured by a file", Program: "haproxy",
		Hint: "install it (apt-get install haproxy)", VersionFlag: "-v", Version: version,
	}
}

var version = text.LazyRegexp(`(?m)^HA-?Proxy version (\S+)`)

// The files in a proxy's directory, in addition to the files of its certificate. The directory is HAProxy's working
// directory, so file names in the configuration are relative to it.
const (
	configFile = "haproxy.cfg"
	statsFile  = "stats.sock"
)

// configuration is the template of HAProxy's configuration. Its data is a config.
//
//go:embed haproxy.cfg.tmpl
var configuration string

func (proxy) Command(p sidecar.Place) (process.Command, error) {
	c := config{Place: p, TCP: p.Protocol == sidecar.ProtocolTCP, HTTP2: sidecar.OverHTTP2(p.Protocol)}
	c.Original, _ = netip.ParseAddrPort(p.From) // the zero value if clients connect to the proxy itself
	functions := template.FuncMap{"uri": uriInDER}
	if err := sidecar.WriteTemplate(p.Dir, configFile, configuration, c, functions); err != nil {
		return process.Command{}, err
	}
	return process.Command{
		// -db runs HAProxy in the foreground, as one process with worker threads.
		Argv: []string{p.Program, "-db", "-f", configFile},
		Dir:  p.Dir,
	}, nil
}

// config is the data of the configuration template.
type config struct {
	sidecar.Place
	TCP      bool           // proxy TCP connections, not HTTP requests
	HTTP2    bool           // use HTTP/2, on both sides
	Original netip.AddrPort // Place.From; the zero value if connections are not redirected
}

// uriInDER returns the encoding of a URI among the subject alternative names of a certificate, in the upper-case
// hexadecimal digits of HAProxy's converter "hex". HAProxy 2.6 cannot read such names, so the configuration searches
// the digits of the whole certificate (ssl_c_der,hex) for these. The encoding begins with the length, so a longer name
// with the same beginning does not match. (RFC 5280, section 4.2.1.6: uniformResourceIdentifier is [6] IA5String.)
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
