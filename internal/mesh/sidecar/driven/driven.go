// Package driven starts Tare's control plane for sidecars that are configured over xDS. The control plane is a separate
// component of the subject. In its mesh, each application is a service (see MeshOf).
package driven

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"tare/internal/lib/param"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/internal/mesh/sidecar"
)

// Component is the control plane's component of the subject.
const Component = "controlplane"

// Names in the directory of a trial.
const (
	meshFile       = "mesh.yaml"
	credentialsDir = "credentials"
)

// Plane describes the running control plane of a trial's proxies.
type Plane struct {
	credentials string // the directory that contains a directory for each proxy
	told        map[string]Told
}

// Told holds how many clusters and listeners a proxy gets from the control plane.
type Told struct{ Clusters, Listeners int }

// Told returns how many clusters and listeners a proxy gets.
func (p Plane) Told(of sidecar.Place) Told { return p.told[Node(of)] }

// Credentials returns the directory with the files that a proxy needs to connect to the control plane: Envoy's
// bootstrap and, in a mesh with mutual TLS, the proxy's certificate and the roots.
func (p Plane) Credentials(of sidecar.Place) string { return filepath.Join(p.credentials, Node(of)) }

// Of returns the control plane of a proxy.
func Of(p sidecar.Place) (Plane, error) {
	plane, ok := p.Control.(Plane)
	if !ok {
		return Plane{}, fmt.Errorf("%s has no control plane", p.Component)
	}
	return plane, nil
}

// Start starts the control plane of the mesh that MeshOf returns for the proxies. Proxies implement sidecar.Driven with
// it.
func Start(ctx context.Context, d sidecar.Drive) (Plane, error) {
	return StartMesh(ctx, d, MeshOf(d.Proxies))
}

// StartMesh starts the control plane of the given mesh, and returns when it is ready. The trial ends its process.
func StartMesh(ctx context.Context, d sidecar.Drive, c *proxyconfig.Config) (Plane, error) {
	told, err := write(d.Dir, c)
	if err != nil {
		return Plane{}, err
	}
	credentials := filepath.Join(d.Dir, credentialsDir)
	if err := os.Mkdir(credentials, 0o700); err != nil {
		return Plane{}, fmt.Errorf("making the directory of the proxies' credentials: %w", err)
	}
	argv := []string{
		d.Trial.Self(), "controlplane", "--config=" + filepath.Join(d.Dir, meshFile), "--credentials=" + credentials,
		"--listen=" + net.JoinHostPort(cmp.Or(d.Host, "127.0.0.1"), "0"),
	}
	if life := sidecar.CertificateLife(d.Proxies[0].Options); life > 0 {
		argv = append(argv, "--life="+life.String())
	}
	process, err := d.Trial.StartSubject(ctx, Component, param.Values{}, argv)
	if err != nil {
		return Plane{}, err
	}
	_, err = process.Ready(ctx)
	return Plane{credentials, told}, err
}

// Change replaces the mesh file of the control plane, which watches the file. The argument control is the Plane that
// Start or the last Change returned. Proxies implement sidecar.Changer with it.
func Change(control any, d sidecar.Drive) (Plane, error) {
	p, ok := control.(Plane)
	if !ok {
		return Plane{}, errors.New("there is no control plane")
	}
	var err error
	p.told, err = write(d.Dir, MeshOf(d.Proxies))
	return p, err
}

// write writes or replaces the mesh file in a directory, and returns the number of resources that each proxy gets.
func write(dir string, c *proxyconfig.Config) (map[string]Told, error) {
	text, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the mesh: %w", err)
	}
	m, err := c.Compile()
	if err != nil {
		return nil, fmt.Errorf("compiling the mesh: %w", err)
	}
	told := map[string]Told{}
	for _, id := range m.Proxies() {
		r, err := m.For(id)
		if err != nil {
			return nil, err
		}
		told[id] = Told{len(r.Clusters), len(r.Listeners)}
	}
	next := filepath.Join(dir, meshFile+".next")
	if err = os.WriteFile(next, text, 0o600); err == nil {
		err = os.Rename(next, filepath.Join(dir, meshFile))
	}
	if err != nil {
		return nil, fmt.Errorf("writing the mesh file: %w", err)
	}
	return told, nil
}

// MeshOf returns the mesh of the proxies: a service for each application, and the further services, which no client
// calls. An application's service is open to the identities in its access rules or, without rules, to its client's
// proxy only. Without TLS and with permissive discovery, it has no access list, and every proxy gets it.
func MeshOf(places []sidecar.Place) *proxyconfig.Config {
	c := &proxyconfig.Config{MTLS: "off", Discovery: places[0].Options["discovery"]}
	services := map[string]*proxyconfig.Service{}
	for _, p := range places {
		if p.Component != sidecar.Server {
			continue
		}
		if p.AcceptTLS {
			c.MTLS = "strict"
		}
		services[p.App] = &proxyconfig.Service{
			Name: p.App, Protocol: p.Protocol, Identity: identity(p), MaxConnections: uint32(p.Connections),
			Endpoints: []proxyconfig.Endpoint{{Address: cmp.Or(p.From, p.Listen)}},
		}
		for _, id := range p.Rules {
			services[p.App].Access = append(services[p.App].Access, proxyconfig.Access{From: []string{account(id)}})
		}
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{
			ID: Node(p), Identity: identity(p),
			Inbound: map[string]proxyconfig.Inbound{p.App: {Listen: p.Listen, To: p.To}}, Outbound: map[string]string{},
			Redirected: redirected(p),
		})
	}
	for _, p := range places {
		if p.Component != sidecar.Client {
			continue
		}
		// Without TLS, callers cannot be identified: an access list then only decides which proxies get the service.
		if s := services[p.App]; len(s.Access) == 0 && (c.MTLS != "off" || !sidecar.Permissive(p.Options)) {
			s.Access = []proxyconfig.Access{{From: []string{identity(p)}}}
		}
		out := map[string]string{p.App: p.Listen}
		for _, o := range p.Others {
			out[o.Name] = o.Listen
		}
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{ID: Node(p), Identity: identity(p), Outbound: out,
			Redirected: redirected(p)})
	}
	for _, p := range places {
		if p.Component == sidecar.Server {
			c.Services = append(c.Services, *services[p.App])
		}
	}
	for _, o := range places[0].Others {
		c.Services = append(c.Services, proxyconfig.Service{
			Name: o.Name, Protocol: places[0].Protocol, Identity: account(o.Identity),
			Endpoints: []proxyconfig.Endpoint{{Address: o.To}},
		})
	}
	return c
}

// redirected returns the address to which a proxy's clients connect, keyed by the application. It returns nil if they
// connect to the proxy's listener.
func redirected(p sidecar.Place) map[string]proxyconfig.Redirected {
	if p.From == "" {
		return nil
	}
	return map[string]proxyconfig.Redirected{p.App: {From: p.From, Transparent: p.Transparent}}
}

// Node returns the node id of a proxy.
func Node(p sidecar.Place) string { return p.Component + "-" + p.App }

// identity returns a proxy's identity in the form that mesh files use: the account of its SPIFFE ID.
func identity(p sidecar.Place) string { return account(p.Identity) }

// account returns the last element of a SPIFFE ID.
func account(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }
