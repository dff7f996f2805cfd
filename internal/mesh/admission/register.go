package admission

import (
	"context"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
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
		Name: "admission",
		Summary: "reviews of pods (AdmissionReview), as an API server sends them to a webhook; the subject must have one " +
			"(`injector`)",
		Settings: Settings,
		Process:  slices.Concat(Settings, []param.Setting{kind.SubjectSetting, kind.SeedSetting}),

		HoldsConnections: kind.Always, // all reviews go over one connection
		Saturates:        func(v param.Values) bool { return v[modeKey] == load.Closed },
	}
}

// Check implements kind.Checker.
func (guest) Check(v param.Values) error {
	_, err := OptionsOf(v)
	return err
}

// Metrics returns the metrics of the load.
func (guest) Metrics() []measured.Metric { return metrics }

// Admitting is a subject that has a webhook. Its ready message is a Webhook.
type Admitting interface{ AdmitsPods() }

// CheckSetup checks that the subject of every arm has a webhook.
func (g guest) CheckSetup(s *kind.Setup, path string, _ *kind.Part) error {
	return kind.CheckServes[Admitting](s, g.About().Name, path, "has a webhook", "has none")
}

// Play implements kind.Player: it prepares, sends ready, works, and sends the result.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	o.Seed = v.Uint(kind.SeedSetting.Name)
	var to Webhook
	if err := kind.SubjectReady(v, &to); err != nil {
		return err
	}
	return Run(ctx, o, to, conn)
}
