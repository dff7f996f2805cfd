package services

import (
	"context"
	"fmt"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
)

// Protocol is the name of the application's protocol: data planes use xDS, and loads ask for changes (Client).
const Protocol = "mesh"

func init() { kind.Register(kind.Application, guest{}) }

// guest implements the application for the engine.
type guest struct{}

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name: "mesh",
		Summary: "a whole mesh: a control plane (xDS) with generated services, which changes their endpoints " +
			"when a load of kind `push` asks for it",
		Settings: Settings,
		Protocol: Protocol,
		Process:  slices.Concat(Settings, []param.Setting{listenSetting}),
		Alone: &kind.Alone{Ready: kind.Worded(listening), Examples: []string{
			"--services 1000",
			"--services 5000 --endpoints 20 --listen 127.0.0.1:18000",
		}},
	}
}

// listening formats the ready message for people.
func listening(_ param.Values, r Ready) string {
	return fmt.Sprintf("the control plane of %s of %s each listens at %s, and takes changes at %s (Ctrl-C ends it)",
		quantity.Counted(r.Services, "service"), quantity.Counted(r.Endpoints, "endpoint"), r.Address, r.Control)
}

// Play runs the application's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	return role.Play(ctx, conn, func(ctx context.Context) error {
		return Serve(ctx, optionsOf(v), func(r Ready) error { return conn.Send(role.Ready, r) })
	})
}
