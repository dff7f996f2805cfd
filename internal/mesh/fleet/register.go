package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest implements the load for the engine.
type guest struct{}

// Interfaces that the engine looks for.
var (
	_ kind.Player       = guest{}
	_ kind.Checker      = guest{}
	_ kind.SetupChecker = guest{}
)

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name: "fleet",
		Summary: "light proxies on a control plane, each with a separate connection: they subscribe over xDS as Envoy " +
			"does, and acknowledge; the subject must be a control plane (`controlplane`)",
		Settings: Settings,
		Process:  slices.Concat(Settings, []param.Setting{kind.SubjectSetting, kind.SeedSetting}),

		MakesPieces: true, // changes and rollouts are not requests
		// Control planes limit the rate at which proxies connect, and Envoys start after the light proxies.
		ReadyWithin: func(param.Values) time.Duration { return 2*patience + role.ReadyTimeout },
	}
}

// Check implements kind.Checker.
func (guest) Check(v param.Values) error {
	o, err := OptionsOf(v)
	if err == nil && o.Slow+o.Refusing+o.Flooding > 0.5 {
		err = errors.New("more than half of the proxies misbehave: too few are left to measure")
	}
	return err
}

// Proxies returns the number of proxies of a load of this kind, which a control plane under test must know.
func (guest) Proxies(v param.Values) int { return v.Int(proxiesKey) }

// ControlPlane is a subject that a fleet can connect to. Its ready message is a Ready.
type ControlPlane interface{ ServesFleets() }

// CheckSetup checks that the subject of every arm is a control plane.
func (g guest) CheckSetup(s *kind.Setup, path string, _ *kind.Part) error {
	return kind.CheckServes[ControlPlane](s, g.About().Name, path, "is a control plane", "is none")
}

// Play implements kind.Player: it prepares, sends ready, works, and sends the result.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) (err error) {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	o.Seed = v.Uint(kind.SeedSetting.Name)
	var r Ready
	if err := kind.SubjectReady(v, &r); err != nil {
		return err
	}
	l, err := Prepare(ctx, o, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.Work(ctx, conn, struct {
		Proxies int `json:"proxies"`
	}{o.Proxies}, l.Run)
}

// Judge applies the usual rules to the load, except to idle and leave, which do no work in the window. It also trips
// gateEnds if the load counted connections that ended although it had not closed them.
func (guest) Judge(m *measured.Measured, name string) []measured.Trip {
	j := m.JudgeLoad(name)
	p := m.Setup.Loads[name]
	if p == nil || !still(p.Options[workKey]) {
		j.Usual()
	}
	if n := j.Result.Counts[countEnds]; n > 0 {
		j.Trip(gateEnds, n, 0, "%g connections to the control plane ended though nobody closed them", n)
	}
	return j.Trips
}

// Metrics returns the metrics of a fleet.
func (guest) Metrics() []measured.Metric { return metrics }
