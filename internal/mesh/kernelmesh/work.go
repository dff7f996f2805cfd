package kernelmesh

import (
	"context"
	"maps"
	"slices"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
)

// Worker does measured work in the data plane's process. Run is called once, and works by the schedule.
type Worker interface {
	Run(ctx context.Context, s role.Schedule) (*load.Result, error)
}

// works has a constructor for each kind of work, by name. A worker is made when the data plane has been loaded, before
// a control plane is connected, and runs when the data plane is attached.
var works = map[string]func(*DataPlane, Options) (Worker, error){WorkPush: newPushWork, WorkReplace: newReplacer}

// Works returns the names of all kinds of work, sorted.
func Works() []string { return slices.Sorted(maps.Keys(works)) }

// newWorker returns the worker that o selects, or nil if it selects none.
func (d *DataPlane) newWorker(o Options) (Worker, error) {
	if o.Work == "" {
		return nil, nil
	}
	return works[o.Work](d, o)
}
