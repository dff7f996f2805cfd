package storebench

import (
	"context"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/mesh/store"
	_ "tare/internal/mesh/store/designs" // registers the designs
)

func init() { kind.Register(kind.Subject, guest{}) }

// guest implements the subject for the engine.
type guest struct{}

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name:     "store",
		Summary:  "a store of mesh configuration in BPF maps, by design, which flushes changes as fast as it can",
		Settings: Settings,
		Label:    "store",
		Alone: &kind.Alone{Warmup: 200 * time.Millisecond, Duration: 2 * time.Second, Examples: []string{
			"--store pooled",
			"--store snapshot --resource listener --operation insert --services 1000",
		}},
		Works:      kind.Always, // the flushes are what is measured
		WorksAlone: true,
		Trait:      func(o param.Values) string { return store.Trait(o["store"]) },
	}
}

// Play runs the subject's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	return Run(ctx, o, conn)
}

// Check refuses options that contradict each other, and unknown stores.
func (guest) Check(o param.Values) error {
	_, err := OptionsOf(o)
	return err
}

// Metrics returns the metrics of the subject.
func (guest) Metrics() []measured.Metric { return metrics }
