// Package driven starts Tare's control plane for sidecars that are configured over xDS: a component of the subject of
// its own, with a mesh in which each application is a service that its client's proxy alone may call.
package driven

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"

	"tare/internal/param"
	"tare/internal/subject/mesh/controlplane"
	"tare/internal/subject/mesh/controlplane/proxyconfig"
	"tare/internal/subject/mesh/sidecar"
)

// Component is the control plane's.
const Component = "controlplane"

// Names in the directory of a trial.
const (
	meshFile       = "mesh.yaml"
	credentialsDir = "credentials"
)

// Plane is what proxies know of their control plane.
type Plane struct {
	Address     string // host:port
	credentials string // the directory that has one for each proxy
}

// Credentials is the directory of what a proxy connects to the control plane by: Envoy's bootstrap, and in a mesh with
// mutual TLS its certificate and the roots.
func (p Plane) Credentials(of sidecar.Place) string { return filepath.Join(p.credentials, Node(of)) }

// Of is the control plane of a proxy.
func Of(p sidecar.Place) (Plane, error) {
	plane, ok := p.Control.(Plane)
	if !ok {
		return Plane{}, fmt.Errorf("%s has no control plane", p.Component)
	}
	return plane, nil
}

// Start starts the control plane of a mesh in which proxies stand; for sidecar.Driven.
func Start(ctx context.Context, d sidecar.Drive) (Plane, error) {
	text, err := yaml.Marshal(meshOf(d.Proxies))
	if err != nil {
		return Plane{}, fmt.Errorf("encoding the mesh: %w", err)
	}
	if err := sidecar.WriteFile(d.Dir, meshFile, text); err != nil {
		return Plane{}, err
	}
	credentials := filepath.Join(d.Dir, credentialsDir)
	if err := os.Mkdir(credentials, 0o700); err != nil {
		return Plane{}, fmt.Errorf("making the directory of the proxies' credentials: %w", err)
	}
	process, err := d.Trial.StartSubject(ctx, Component, param.Values{}, []string{
		d.Trial.Self(), "controlplane", "--config=" + filepath.Join(d.Dir, meshFile), "--credentials=" + credentials,
		"--listen=" + net.JoinHostPort(cmp.Or(d.Host, "127.0.0.1"), "0"),
	})
	if err != nil {
		return Plane{}, err
	}
	data, err := process.Ready(ctx)
	if err != nil {
		return Plane{}, err
	}
	var ready controlplane.Ready
	if err := json.Unmarshal(data, &ready); err != nil {
		return Plane{}, fmt.Errorf("reading where the control plane listens: %w", err)
	}
	return Plane{ready.Address, credentials}, nil
}

// meshOf is the mesh in which proxies stand: a service for each application, which its client alone may call.
func meshOf(places []sidecar.Place) *proxyconfig.Config {
	c := &proxyconfig.Config{MTLS: "off", Discovery: "policy"}
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
		s := services[p.App]
		s.Access = []proxyconfig.Access{{From: []string{identity(p)}}}
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{
			ID: Node(p), Identity: identity(p), Outbound: map[string]string{p.App: p.Listen}, Redirected: redirected(p),
		})
	}
	for _, p := range places {
		if p.Component == sidecar.Server {
			c.Services = append(c.Services, *services[p.App])
		}
	}
	return c
}

// redirected is where a proxy's clients connect to; nil: to its listener.
func redirected(p sidecar.Place) map[string]proxyconfig.Redirected {
	if p.From == "" {
		return nil
	}
	return map[string]proxyconfig.Redirected{p.App: {From: p.From, Transparent: p.Transparent}}
}

// Node is the id of a proxy's node.
func Node(p sidecar.Place) string { return p.Component + "-" + p.App }

// identity is a proxy's, as mesh files have it: the account of its SPIFFE ID.
func identity(p sidecar.Place) string { return p.Identity[strings.LastIndexByte(p.Identity, '/')+1:] }
