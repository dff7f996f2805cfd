// Package envoy is Envoy as the sidecars of a mesh, configured by Tare's own control plane over xDS.
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

// proxy is Envoy as package sidecar knows it.
type proxy struct{}

func (proxy) About() sidecar.About {
	return sidecar.About{
		Name: "envoy", Summary: "Envoy as sidecars, configured by Tare's control plane over xDS", Program: "envoy",
		Hint:        "install it: 'make envoy' in Tare's sources, or any other envoy on the PATH",
		VersionFlag: "--version", Version: version,
	}
}

var version = text.LazyRegexp(`version: [0-9a-f]+/([^/\n]+)/`)

// adminFile is where Envoy writes the address of its administration, in its directory.
const adminFile = "admin"

// Drive is sidecar.Driven's: it starts the control plane of a mesh in which the proxies stand.
func (proxy) Drive(ctx context.Context, d sidecar.Drive) (any, error) { return driven.Start(ctx, d) }

// Change is sidecar.Changer's.
func (proxy) Change(_ context.Context, control any, d sidecar.Drive) (any, error) {
	return driven.Change(control, d)
}

// drainTime is for how many seconds Envoy keeps a listener that was taken away. Its own choice is 600, for which the
// memory of the listener would stay as well.
const drainTime = "0"

// Command is Envoy with its bootstrap. It runs as whoever started it: it cannot give up rights once it has read its
// files. Hot restart would leave shared memory behind, and no other Envoy takes over here.
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
