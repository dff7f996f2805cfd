// Package syscalls is a load that makes batches of system calls and times each kind: a ladder from the cheapest call to
// starting a program. If the subject is a sandbox, the load runs inside it, and shows the cost of crossing its
// boundary.
package syscalls

import (
	"context"
	"fmt"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/role"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
)

// name is the load's name in specs, and the name of its generator in results.
const name = "syscalls"

func init() { kind.Register(kind.Load, guest{}) }

// guest implements the load for the engine.
type guest struct{}

// settingBatch is the name of the setting for the duration of a batch of calls.
const settingBatch = "batch"

var settings = []param.Setting{
	{Name: settingBatch, Type: param.TypeDuration, Default: "300µs", Min: 10e-6, Max: 1,
		Doc: "approximate duration of a batch of calls of one kind, which are timed together"},
}

func (guest) About() kind.About {
	return kind.About{
		Name: name, Summary: "system calls, each timed: getpid, read, write, open, connect, fork, exec", Settings: settings,
		Alone: &kind.Alone{Examples: []string{"--duration 10s"}},

		RunsInside: kind.Always, // the cost of a call depends on where it is made
		Saturates:  kind.Always, // it makes calls as fast as they return
	}
}

// Play runs the load's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	l, err := newLadder(v.Duration(settingBatch))
	if err != nil {
		return err
	}
	defer l.close()
	return role.Work(ctx, conn, role.Wants{Clock: pace.Now()},
		func(ctx context.Context, s role.Schedule) (*load.Result, error) { return l.run(ctx, s) })
}

// Judge rejects a load that did not make every kind of call in the window.
func (guest) Judge(m *measured.Measured, name string) []measured.Trip {
	if len(m.Loads[name].Counts) == len(calls) {
		return nil
	}
	return []measured.Trip{measured.Tripped(measured.GateIdle, float64(len(m.Loads[name].Counts)), float64(len(calls)),
		"%s: not every kind of call was made in the window; make it longer", name)}
}

// Metrics returns the times of the calls.
func (guest) Metrics() []measured.Metric {
	var all []measured.Metric
	for _, c := range calls {
		all = append(all, measured.Metric{
			Definition: metric.Definition{
				Name: "syscall_" + c.name + "_seconds", Unit: quantity.Seconds, Rank: metric.RankWork, Pool: metric.Mean,
				Better: metric.Lower, Needs: measured.NeedSeen, Headline: true, Clause: "takes {} for " + c.short,
				Ladder: "system calls", Rung: c.short,
				How: fmt.Sprintf("Time of %s. Median over the batches of calls that a load of kind `%s` made in the window; of "+
					"several such loads the mean.", c.doc, name),
			},
			Value: func(m *measured.Measured) (total float64, ok bool) {
				n := 0
				for _, r := range lists.ByKey(m.Loads) {
					if r.Generator != name {
						continue
					}
					v, has := r.Counts[c.name+"_seconds"]
					if !has {
						return 0, false
					}
					total, n = total+v, n+1
				}
				return total / float64(max(n, 1)), n > 0
			},
		})
	}
	return all
}
