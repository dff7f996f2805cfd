package storebench

import (
	"context"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/mesh/store"
	_ "tare/internal/mesh/store/designs" // what can be opened
)

func init() { kind.Register(kind.Subject, guest{}) }

// guest is the subject as the engine knows it.
type guest struct{}

// About says what it is.
func (guest) About() kind.About {
	return kind.About{
		Name:     "store",
		Summary:  "a store of mesh configuration in BPF maps, by design, which flushes changes as fast as it goes",
		Settings: Settings,
		Label:    "store",
		Alone: &kind.Alone{Warmup: 200 * time.Millisecond, Duration: 2 * time.Second, Examples: []string{
			"--store pooled",
			"--store snapshot --resource listener --operation insert --services 1000",
		}},
		Works:      kind.Always, // flushes are what it is measured by, and it flushes by itself
		WorksAlone: true,
		Trait:      func(o param.Values) string { return store.Trait(o["store"]) },
	}
}

// Play is the subject's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	return Run(ctx, o, conn)
}

// Check refuses options that do not go together, and stores that do not exist.
func (guest) Check(o param.Values) error {
	_, err := OptionsOf(o)
	return err
}

// Metrics are those of its flushes.
func (guest) Metrics() []measured.Metric { return metrics }
