package calibrate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

func (b *bench) cpu() (all []planting, err error) {
	for _, share := range []float64{0.1, 0.5, 1} {
		all = append(all, planting{fmt.Sprintf("%.0f %% of a CPU", 100*share),
			func(ctx context.Context) ([]Weight, error) { return b.burnShare(ctx, share) }})
	}
	return append(all, planting{"the budget under load", b.budget}), nil
}

// burners runs a burner on each pin, and returns the ledger of that time.
func (b *bench) burners(ctx context.Context, o burnOrder,
	pins ...int) (l *ledger.Ledger, results []plantedResult, paths []string, err error) {
	children, paths, err := b.startOn(ctx, pins, "burn")
	defer func() { err = errors.Join(err, stopAll(children)) }()
	if err != nil {
		return nil, nil, nil, err
	}
	l, err = b.ledgerOf(ctx, 0, func() error {
		results, err = order(ctx, children, func(int) any { return o })
		return err
	})
	return l, results, paths, err
}

// order sends each process its order, and then waits for all results.
func order(ctx context.Context, children []*child, what func(i int) any) ([]plantedResult, error) {
	for i, c := range children {
		if err := c.begin(what(i)); err != nil {
			return nil, err
		}
	}
	out := make([]plantedResult, len(children))
	for i, c := range children {
		if err := c.result(ctx, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (b *bench) burnShare(ctx context.Context, share float64) ([]Weight, error) {
	d := b.length(3*time.Second, time.Second)
	l, results, paths, err := b.burners(ctx, burnOrder{share, d.Seconds()}, 1)
	if err != nil {
		return nil, err
	}
	planted := fmt.Sprintf("a process that uses %.0f %% of a CPU for %v, by its own CPU clock", 100*share, d)
	name := fmt.Sprintf("CPU time of a group, %.0f %% of a CPU", 100*share)
	return []Weight{burnt(name, groupOf(l, paths[0]), results[0].CPUSeconds, planted)}, nil
}

const groupLost = "the group is not in the ledger"

// burnt weighs the CPU time of a group, which is nil if the ledger has lost it.
func burnt(name string, g *ledger.Cgroup, truth float64, planted string) Weight {
	// 1 ms, because the process uses CPU time before and after its own measurement, to exchange messages.
	allowed := Tolerance{Absolute: 1e-3, Part: 0.01}
	switch {
	case g == nil:
		return known(name, quantity.Seconds, truth, 0, allowed, planted).noted(groupLost)
	case g.CPUSeconds == nil:
		return missing(name, quantity.Seconds, planted, "no counter of the group's CPU time")
	}
	// Time stolen just before or after the process's own measurement may be in one figure and not in the other.
	return known(name, quantity.Seconds, truth, *g.CPUSeconds, allowed, planted).estimated().
		only(func(off float64, s stood) bool { return s.stolenSeconds >= off })
}

func (b *bench) budget(ctx context.Context) ([]Weight, error) {
	d := b.length(5*time.Second, 2*time.Second)
	var pins []int
	for i := range runtime.NumCPU() {
		pins = append(pins, i+1)
	}
	l, _, _, err := b.burners(ctx, burnOrder{1, d.Seconds()}, pins...)
	if err != nil {
		return nil, err
	}
	planted := fmt.Sprintf("all CPUs busy for %v; a budget that closes leaves nothing", d)
	w := known("unexplained part of the capacity", quantity.Part, 0, l.CPU.Unexplained/l.CPU.Capacity,
		Tolerance{Absolute: 0.02}, planted)
	sum := 0.0
	if !l.CPU.Closes() { // Closes allows for the overlap of idle time and steal
		sum = l.CPU.Idle + l.CPU.Steal + l.CPU.Attributed + l.CPU.Unexplained - l.CPU.Capacity
	}
	exact := known("parts of the budget less the capacity", quantity.Seconds, 0, sum, Tolerance{Absolute: 1e-6}, planted)
	return []Weight{w.unless(func(off float64, s stood) bool { return s.away >= off }), exact}, nil
}

func groupOf(l *ledger.Ledger, path string) *ledger.Cgroup {
	return lists.Find(l.Cgroups, func(g *ledger.Cgroup) bool { return g.Path == path })
}
