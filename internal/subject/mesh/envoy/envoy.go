// Package envoy is Envoy as the sidecars of a mesh, configured by Tare's own control plane over xDS.
package envoy

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"tare/internal/command"
	"tare/internal/param"
	"tare/internal/pattern"
	"tare/internal/subject/mesh/controlplane"
	"tare/internal/subject/mesh/controlplane/proxyconfig"
	"tare/internal/subject/mesh/sidecar"
)

func init() { sidecar.Register(proxy{}) }

// ControlPlane is the component that configures the proxies.
const ControlPlane = "controlplane"

// proxy is Envoy as package sidecar knows it.
type proxy struct{}

func (proxy) About() sidecar.About {
	return sidecar.About{
		Name: "envoy", Summary: "Envoy as sidecars, configured by Tare's control plane over xDS", Program: "envoy",
		Hint: "install it: 'make envoy' in Tare's sources, or any other envoy on the PATH",
	}
}

var version = pattern.Lazy(`version: [0-9a-f]+/([^/]+)/`)

func (proxy) Version(ctx context.Context, program string) string {
	for line := range strings.Lines(command.Printed(ctx, program, "--version")) {
		if m := version().FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return ""
}

// Files in the directory of a trial and of a proxy.
const (
	meshFile       = "mesh.yaml"
	credentialsDir = "credentials"
	adminFile      = "admin" // Envoy writes the address of its administration there
)

// control is what proxies know of their control plane: where it keeps their files.
type control string

// Drive starts the control plane of a mesh in which the proxies stand.
func (proxy) Drive(ctx context.Context, d sidecar.Drive) (any, error) {
	c := meshOf(d.Proxies)
	text, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the mesh: %w", err)
	}
	if err := sidecar.WriteFile(d.Dir, meshFile, text); err != nil {
		return nil, err
	}
	credentials := filepath.Join(d.Dir, credentialsDir)
	if err := os.Mkdir(credentials, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the proxies' credentials: %w", err)
	}
	process, err := d.Trial.StartSubject(ctx, ControlPlane, param.Values{}, []string{
		d.Trial.Self(), "controlplane", "--config=" + filepath.Join(d.Dir, meshFile), "--credentials=" + credentials,
		"--listen=" + net.JoinHostPort(d.Host, "0"),
	})
	if err != nil {
		return nil, err
	}
	if _, err := process.Ready(ctx); err != nil {
		return nil, err
	}
	return control(credentials), nil
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
			ID: node(p), Identity: identity(p),
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
			ID: node(p), Identity: identity(p), Outbound: map[string]string{p.App: p.Listen}, Redirected: redirected(p),
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

// node is the id of a proxy's node.
func node(p sidecar.Place) string { return p.Component + "-" + p.App }

// identity is a proxy's, as mesh files have it: the account of its SPIFFE ID.
func identity(p sidecar.Place) string { return p.Identity[strings.LastIndexByte(p.Identity, '/')+1:] }

// Command is Envoy with its bootstrap. It runs as whoever started it: it cannot give up rights once it has read its
// files. Hot restart would leave shared memory behind, and no other Envoy takes over here.
func (proxy) Command(p sidecar.Place) (command.Command, error) {
	dir, ok := p.Control.(control)
	if !ok {
		return command.Command{}, fmt.Errorf("%s has no control plane", p.Component)
	}
	return command.Command{
		Argv: []string{
			p.Program, "-c", filepath.Join(string(dir), node(p), controlplane.EnvoyBootstrapFile),
			"--concurrency", strconv.Itoa(p.Workers), "--disable-hot-restart", "--log-level", "warning",
			"--admin-address-path", filepath.Join(p.Dir, adminFile),
		},
		Dir: p.Dir,
	}, nil
}
