package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"tare/internal/kind"
	"tare/internal/pace"
	"tare/internal/role"
)

// This file is of applications and loads that their guests start by themselves: kind.Server and kind.Generator.

// joinApplications has the applications of a trial join it.
func (x *trial) joinApplications() (err error) {
	for _, name := range slices.Sorted(maps.Keys(x.spec.Applications)) {
		part := x.spec.Applications[name]
		if j, ok := part.Kind.(kind.Joiner); ok {
			if x.hosted[name], err = j.Join(x, name, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve starts an application by its hook.
func (x *trial) serve(ctx context.Context, name string, s kind.Server) error {
	app, err := s.Serve(ctx)
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if app.Address != "" { // else it serves nobody
		x.apps[name] = app
	}
	return nil
}

// generators are the loads of the trial that their guests start, by name.
func (x *trial) generators() map[string]kind.Generator {
	all := map[string]kind.Generator{}
	for name, part := range x.joined {
		if g, ok := part.(kind.Generator); ok {
			all[name] = g
		}
	}
	return all
}

// generate starts the generators when the schedule begins.
func (x *trial) generate(ctx context.Context, s role.Schedule) error {
	all := x.generators()
	if len(all) == 0 {
		return nil
	}
	if err := pace.SleepUntil(ctx, s.Begin); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := all[name].Generate(ctx, s); err != nil {
			return fmt.Errorf("starting the load %s: %w", name, err)
		}
	}
	return nil
}

// takeGenerated takes the results of the generators.
func (x *trial) takeGenerated(ctx context.Context) error {
	all := x.generators()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r, err := all[name].Result(ctx)
		if err != nil {
			return fmt.Errorf("the load %s: %w", name, err)
		}
		x.record.Loads[name] = r
	}
	return nil
}
