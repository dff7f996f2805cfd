// Package envoy runs Envoy as the sidecars of a mesh, configured by Tare's own control plane over xDS.
package envoy

import (
	"context"
	"path/filepath"
	"strconv"

	"tare/internal/experiment/process"
	"tare/internal/lib/text"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/sidecar"
	"tare/internal/mesh/sidecar/driven"
)

func init() { sidecar.Register(proxy{}) }

// proxy implements sidecar.Proxy.
type proxy struct{}

func (proxy) About() sidecar.About {
	return sidecar.About{
		Name: "envoy", Summary: "Envoy as sidecars, configured by Tare's control plane over xDS", Program: "envoy",
		Hint:        "install it: 'make envoy' in Tare's sources, or any other envoy on the PATH",
		VersionFlag: "--version", Version: version,
	}
}

var version = text.LazyRegexp(`version: [0-9a-f]+/([^/\n]+)/`)

// adminFile is the file in a proxy's directory to which Envoy writes the address of its admin interface.
const adminFile = "admin"

// Drive implements sidecar.Driven: it starts a control plane for the mesh and its proxies.
func (proxy) Drive(ctx context.Context, d sidecar.Drive) (any, error) { return driven.Start(ctx, d) }

// Change implements sidecar.Changer.
func (proxy) Change(_ context.Context, control any, d sidecar.Drive) (any, error) {
	return driven.Change(control, d)
}

// drainTime is the time, in seconds, for which Envoy keeps a removed listener. With the default of 600, the listener's
// memory would still be in use when memory is read after a removal of services.
const drainTime = "0"

// Command returns the command that runs Envoy with its bootstrap. Envoy keeps the user of this process, because it
// cannot drop privileges after it has read its files. Hot restart is disabled: no other Envoy takes over, and hot
// restart would leave shared memory on the machine.
func (proxy) Command(p sidecar.Place) (process.Command, error) {
	plane, err := driven.Of(p)
	if err != nil {
		return process.Command{}, err
	}
	return process.Command{
		Argv: []string{
			p.Program, "-c", filepath.Join(plane.Credentials(p), authority.EnvoyBootstrapFile),
			"--concurrency", strconv.Itoa(p.Workers), "--disable-hot-restart", "--log-level", "warning",
			"--drain-time-s", drainTime,
			"--admin-address-path", filepath.Join(p.Dir, adminFile),
		},
		Dir: p.Dir,
	}, nil
}
