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

// guest is the load as the engine knows it.
type guest struct{}

// What the guest has that the engine looks for.
var (
	_ kind.Player       = guest{}
	_ kind.Checker      = guest{}
	_ kind.SetupChecker = guest{}
)

// About says what it is.
func (guest) About() kind.About {
	return kind.About{
		Name: "admission",
		Summary: "reviews of pods (AdmissionReview), as an API server sends them to a webhook; the subject must have one " +
			"(`injector`)",
		Settings: Settings,
		Process:  slices.Concat(Settings, []param.Setting{kind.SubjectSetting, kind.SeedSetting}),

		HoldsConnections: kind.Always, // all reviews go over one
		Saturates:        func(v param.Values) bool { return v[modeKey] == load.Closed },
	}
}

// Check is kind.Checker's.
func (guest) Check(v param.Values) error {
	_, err := OptionsOf(v)
	return err
}

// Metrics are those of the load.
func (guest) Metrics() []measured.Metric { return metrics }

// Admitting is a subject that has a webhook. Its ready message is a Webhook.
type Admitting interface{ AdmitsPods() }

// CheckSetup sees that there is a webhook in every arm.
func (g guest) CheckSetup(s *kind.Setup, path string, _ *kind.Part) error {
	return kind.CheckServes[Admitting](s, g.About().Name, path, "has a webhook", "has none")
}

// Play is kind.Player's: prepares, says ready, works, and sends the result.
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
