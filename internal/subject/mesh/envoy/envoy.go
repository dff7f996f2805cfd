// Package envoy is Envoy as the sidecars of a mesh, configured by Tare's own control plane over xDS.
package envoy

import (
	"context"
	"fmt"
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

// control is what proxies know of their control plane.
type control struct {
	credentials string         // the directory of their files
	told        map[string]had // by node
}

// had is what an Envoy has when it has put to work all that it is told.
type had struct{ clusters, listeners int }

// Drive starts the control plane of a mesh in which the proxies stand.
func (proxy) Drive(ctx context.Context, d sidecar.Drive) (any, error) {
	return drive(ctx, d, meshOf(d.Proxies))
}

func drive(ctx context.Context, d sidecar.Drive, c *proxyconfig.Config) (any, error) {
	held, err := write(d.Dir, c)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(held.credentials, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of the proxies' credentials: %w", err)
	}
	process, err := d.Trial.StartSubject(ctx, ControlPlane, param.Values{}, []string{
		d.Trial.Self(), "controlplane", "--config=" + filepath.Join(d.Dir, meshFile), "--credentials=" + held.credentials,
	})
	if err != nil {
		return nil, err
	}
	if _, err := process.Ready(ctx); err != nil {
		return nil, err
	}
	return held, nil
}

// Change gives the control plane another mesh file, which it looks for by itself.
func (proxy) Change(_ context.Context, _ any, d sidecar.Drive) (any, error) {
	return write(d.Dir, meshOf(d.Proxies))
}

// write puts a mesh file into a directory as a whole, also where there is one, and says what proxies are told by it.
func write(dir string, c *proxyconfig.Config) (*control, error) {
	held := &control{filepath.Join(dir, credentialsDir), map[string]had{}}
	text, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the mesh: %w", err)
	}
	m, err := c.Compile()
	if err != nil {
		return nil, fmt.Errorf("compiling the mesh: %w", err)
	}
	for _, id := range m.Proxies() {
		r, err := m.For(id)
		if err != nil {
			return nil, err
		}
		held.told[id] = had{len(r.Clusters), len(r.Listeners)}
	}
	const next = meshFile + ".next"
	if err := sidecar.WriteFile(dir, next, text); err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(dir, next), filepath.Join(dir, meshFile)); err != nil {
		return nil, fmt.Errorf("writing the mesh file: %w", err)
	}
	return held, nil
}

// meshOf is the mesh in which proxies stand: a service for each application, which its client alone may call, and the
// further services, which nobody calls.
func meshOf(places []sidecar.Place) *proxyconfig.Config {
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
			Endpoints: []proxyconfig.Endpoint{{Address: p.Listen}},
		}
		for _, id := range p.Rules {
			services[p.App].Access = append(services[p.App].Access, proxyconfig.Access{From: []string{account(id)}})
		}
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{
			ID: node(p), Identity: identity(p),
			Inbound: map[string]proxyconfig.Inbound{p.App: {Listen: p.Listen, To: p.To}}, Outbound: map[string]string{},
		})
	}
	for _, p := range places {
		if p.Component != sidecar.Client {
			continue
		}
		// Without TLS nobody knows who calls: then a list only decides who is told.
		if s := services[p.App]; len(s.Access) == 0 && (c.MTLS != "off" || !sidecar.Permissive(p.Options)) {
			s.Access = []proxyconfig.Access{{From: []string{identity(p)}}}
		}
		out := map[string]string{p.App: p.Listen}
		for _, o := range p.Others {
			out[o.Name] = o.Listen
		}
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{ID: node(p), Identity: identity(p), Outbound: out})
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

// node is the id of a proxy's node.
func node(p sidecar.Place) string { return p.Component + "-" + p.App }

// identity is a proxy's, as mesh files have it: the account of its SPIFFE ID.
func identity(p sidecar.Place) string { return account(p.Identity) }

func account(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// drainTime is for how many seconds Envoy keeps a listener that was taken away. Its own choice is 600, for which the
// memory of the listener would stay as well.
const drainTime = "0"

// Command is Envoy with its bootstrap. It runs as whoever started it: it cannot give up rights once it has read its
// files. Hot restart would leave shared memory behind, and no other Envoy takes over here.
func (proxy) Command(p sidecar.Place) (command.Command, error) {
	c, ok := p.Control.(*control)
	if !ok {
		return command.Command{}, fmt.Errorf("%s has no control plane", p.Component)
	}
	return command.Command{
		Argv: []string{
			p.Program, "-c", filepath.Join(c.credentials, node(p), controlplane.EnvoyBootstrapFile),
			"--concurrency", strconv.Itoa(p.Workers), "--disable-hot-restart", "--log-level", "warning",
			"--drain-time-s", drainTime,
			"--admin-address-path", filepath.Join(p.Dir, adminFile),
		},
		Dir: p.Dir,
	}, nil
}
