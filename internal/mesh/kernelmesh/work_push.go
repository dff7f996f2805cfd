package kernelmesh

import (
	"context"
	"runtime"
	"sync"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/push"
	"tare/internal/mesh/xds"
)

// WorkPush is the work that times the changes that a control plane pushes.
const WorkPush = "push"

// pushWork is the work of a data plane whose control plane pushes changes: it measures the times from when a change was
// sent until it was received, decoded, visible to programs and acknowledged. The control plane must stamp its responses
// (application mesh), and the load "push" must run.
type pushWork struct {
	mu     sync.Mutex
	events []xds.Event
	some   chan struct{} // has room for one: signals that there are events
}

func newPushWork(d *DataPlane, o Options) (Worker, error) {
	if o.XDS == "" {
		return nil, fault.New(fault.Usage, "--work "+WorkPush, "give one with --xds",
			"there is no control plane whose changes could be timed")
	}
	w := &pushWork{some: make(chan struct{}, 1)}
	d.onEvent = w.hear
	return w, nil
}

// hear records a response. It must not delay the client.
func (w *pushWork) hear(e xds.Event) {
	if e.Kind != xds.Endpoints {
		return
	}
	w.mu.Lock()
	w.events = append(w.events, e)
	w.mu.Unlock()
	select {
	case w.some <- struct{}{}:
	default:
	}
}

// heard waits for events and returns them.
func (w *pushWork) heard(ctx context.Context) ([]xds.Event, error) {
	for {
		w.mu.Lock()
		events := w.events
		w.events = nil
		w.mu.Unlock()
		if len(events) > 0 {
			return events, nil
		}
		select {
		case <-w.some:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Run times the changes that are sent in the window, whenever they are applied. It ends with the first change that is
// sent after the window; the load makes one more change for this purpose. If none was sent in the window, Run times
// that one.
func (w *pushWork) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	begin, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	times := push.NewTimes(push.Received, push.Decoded, push.Visible, push.Acked)
	r := &load.Result{
		Generator: push.Generator, Mode: load.Closed, Seconds: float64(s.Duration) / 1e9,
		CPUs: float64(runtime.NumCPU()), Errors: map[string]int64{},
	}
	r.CPUSeconds, err = s.CPUTime(func() error { return w.count(ctx, begin, end, r, times) })
	if err != nil {
		return nil, err
	}
	r.Intended, r.Sent, r.Rate = r.Done, r.Done, float64(r.Done)/r.Seconds
	return r, r.SetHistograms(times)
}

// count counts and times the changes that were sent between begin and end.
func (w *pushWork) count(ctx context.Context, begin, end int64, r *load.Result, times push.Times) error {
	for more := true; more; {
		events, err := w.heard(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			_, sent, ok := controlplane.TimesOf(e.Version)
			if !ok {
				return fault.New(fault.Usage, "--work "+WorkPush, "use the control plane of 'tare app mesh'",
					"the control plane does not say in the version of its responses when it sent them")
			}
			if sent < begin {
				continue
			}
			if late := sent >= end; late {
				more = false
				if r.Done > 0 {
					break
				}
			}
			if len(e.Refused) > 0 {
				r.Errors["refused"]++
				continue
			}
			r.Done++
			for name, at := range map[string]int64{
				push.Received: e.Received, push.Decoded: e.Decoded, push.Visible: e.Applied, push.Acked: e.Acked,
			} {
				times.Add(name, at-sent)
			}
		}
	}
	return nil
}
