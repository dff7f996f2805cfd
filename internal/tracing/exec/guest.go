package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
)

// Name is the load's name in specs.
const Name = "exec"

// asLoad implements the load for experiments. Its execs are events, which Counting also counts in the kernel.
type asLoad struct{}

func init() { kind.Register(kind.Load, asLoad{}) }

func (asLoad) About() kind.About {
	return kind.About{
		Name: Name, Summary: "execs of a tiny program; it knows exactly how many it made", Settings: Settings,
		Process: slices.Concat(Settings, []param.Setting{load.SpinSetting}),
		Alone: &kind.Alone{Examples: []string{
			"--rate storm --duration 5s",
			"--rate 1000 --warmup 1s --duration 10s --json",
		}},
		InPods: true,
		Rate:   func(v param.Values) float64 { return OptionsOf(v).Rate }, // 0 for a storm
	}
}

// Events implements kind.EventMaker.
func (asLoad) Events(r *load.Result) (made, failed int64) {
	return int64(r.Counts[CountMade]), int64(r.Counts[CountFailed])
}

// Play runs the load's process.
func (asLoad) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	return Run(ctx, OptionsOf(v), conn)
}

func (asLoad) Check(o param.Values) error {
	if o.Float(kind.CountSetting) > 1 {
		return errors.New(`the events of one load are counted: give it more "workers" instead of a "count"`)
	}
	return nil
}

// CheckSetup refuses a second load that makes events, because the events of only one load are counted.
func (asLoad) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	if s.Loads[s.EventLoad()] != part {
		return fmt.Errorf(`a second load of kind %s: the events of one are counted; give that more "workers"`, Name)
	}
	return nil
}

// Join starts the counting before any process is in the load's control group.
func (asLoad) Join(t kind.Trial, name string, _ *kind.Part) (any, error) {
	c, err := newCounting(t, name)
	if err != nil {
		return nil, err // not a typed nil pointer in the interface
	}
	return c, nil
}
