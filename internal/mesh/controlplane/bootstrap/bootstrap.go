// Package bootstrap makes the file that an Envoy is started with: who it is, and which control plane tells it the rest.
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

// Envoy is what an Envoy is started with.
type Envoy struct {
	Node         string // id, as the mesh file has it
	Cluster      string // of nodes, a name that Envoy wants
	ControlPlane string // host:port
	// TLS is how it connects there; nil: in the clear.
	TLS *TLS
	// StateOfTheWorld has it ask for all resources of a type at a time; it asks for deltas otherwise.
	StateOfTheWorld bool
}

// TLS is a connection by TLS 1.3 to nobody but a server of an identity.
type TLS struct {
	Server string // SPIFFE ID
	// Identity and Roots are files with the secrets "identity" and "roots", each as a response of SDS.
	Identity, Roots string
}

//go:embed envoy.json.tmpl
var source string

// configuration is made for an Envoy and where its control plane is.
var configuration = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("envoy.json").Funcs(template.FuncMap{"json": quoted}).Parse(source))
})

// JSON is the bootstrap as Envoy reads it (envoy -c FILE). It has no key in it. Its administration listens at a free
// port of 127.0.0.1, which --admin-address-path tells.
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

// quoted is a text as JSON has it.
func quoted(text string) (string, error) {
	out, err := json.Marshal(text)
	return string(out), err
}
