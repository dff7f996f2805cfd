// Package bootstrap makes the file with which an Envoy is started. The file holds the Envoy's node id and the address
// of the control plane, which sends everything else.
package bootstrap

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"sync"
	"text/template"
)

// Envoy is the content of a bootstrap.
type Envoy struct {
	Node         string // the id in the mesh file
	Cluster      string // the name of the node's cluster, which Envoy requires
	ControlPlane string // host:port
	// TLS secures the connection to the control plane; nil: no TLS.
	TLS *TLS
	// StateOfTheWorld makes Envoy use that variant of xDS instead of deltas.
	StateOfTheWorld bool
}

// TLS describes a TLS 1.3 connection that accepts only a server with one identity.
type TLS struct {
	Server string // SPIFFE ID
	// Identity and Roots are files with the secrets "identity" and "roots", each as a response of SDS.
	Identity, Roots string
}

//go:embed envoy.json.tmpl
var source string

// configuration is the template of the bootstrap.
var configuration = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("envoy.json").Funcs(template.FuncMap{"json": quoted}).Parse(source))
})

// JSON returns the bootstrap in the format of envoy -c FILE. It contains no key. Envoy's admin interface listens at a
// free port of 127.0.0.1, whose address Envoy writes to the file of --admin-address-path.
func (b Envoy) JSON() ([]byte, error) {
	host, text, err := net.SplitHostPort(b.ControlPlane)
	if err != nil {
		return nil, fmt.Errorf("the address of the control plane: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("the port of the control plane: %w", err)
	}
	discovery := "STRICT_DNS"
	if net.ParseIP(host) != nil {
		discovery = "STATIC"
	}
	var out bytes.Buffer
	if err := configuration().Execute(&out, struct {
		Envoy
		Host, Discovery string
		Port            uint64
	}{b, host, discovery, port}); err != nil {
		return nil, fmt.Errorf("encoding the bootstrap of %s: %w", b.Node, err)
	}
	return out.Bytes(), nil
}

// quoted returns a text as a JSON string.
func quoted(text string) (string, error) {
	out, err := json.Marshal(text)
	return string(out), err
}
