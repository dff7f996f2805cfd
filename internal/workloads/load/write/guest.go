package write

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

// guest implements kind.Guest. The load connects to no application, because the file system serves it.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name: Name, Summary: "writes to files, with fsync or without", Settings: Settings,
		Process: slices.Concat(Settings, []param.Setting{kind.SeedSetting, load.SpinSetting}),
		Alone: &kind.Alone{Examples: []string{
			"--rate 1000 --duration 10s",
			"--mode closed --sync fsync --directory /var/lib/mydisk --duration 10s",
		}},
		Saturates: func(v param.Values) bool { return v["mode"] == load.Closed },
	}
}

func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	return Run(ctx, o, conn)
}

func (guest) Check(v param.Values) error {
	_, err := OptionsOf(v)
	return err
}

func (guest) Metrics() []measured.Metric { return metrics }

// Judge judges the load like any other, except that the load may use all of its CPU time: the kernel does the work of a
// write in the thread that writes.
func (guest) Judge(m *measured.Measured, name string) []measured.Trip {
	j := m.JudgeLoad(name)
	j.Usual()
	return slices.DeleteFunc(j.Trips, func(t measured.Trip) bool { return t.Gate == measured.GateGenerator })
}
