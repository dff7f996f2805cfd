package kernelmesh

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh"
	"tare/internal/mesh/generation"
)

// WorkReplace is the work that replaces configuration as fast as it can.
const WorkReplace = "replace"

// replacer repeatedly changes two generated services (package generation): each change gives new endpoints to the
// cluster of the first service, makes the listener of the second service use a new cluster, and removes that cluster's
// predecessor. The page of generations records when each change begins and returns, so that a load that connects
// meanwhile (package connect) can judge what it finds.
type replacer struct {
	d    *DataPlane
	page *generation.Page // closed by Run
	next uint64           // the next generation
}

// newReplacer puts generation 0 into the data plane.
func newReplacer(d *DataPlane, _ Options) (Worker, error) {
	r := &replacer{d: d, next: 1}
	if _, err := d.Apply(context.Background(), r.first()); err != nil {
		return nil, fault.Wrap(err, max(fault.CodeOf(err), fault.Internal), "--work "+WorkReplace,
			"make room for three more clusters of 4 endpoints: --max-services, --max-endpoints",
			"the services that are to be replaced cannot be put in")
	}
	var err error
	if r.page, err = generation.Create(); err != nil {
		return nil, err
	}
	return r, nil
}

// first returns the change that makes generation 0, with both listeners.
func (r *replacer) first() mesh.Change {
	c := r.change(0)
	c.Listeners = nil
	for service := range generation.Services {
		c.Listeners = append(c.Listeners, r.listener(service, 0))
	}
	return c
}

// clusterOf returns the name of a service's cluster in a generation.
func clusterOf(service int, g uint64) string {
	if service == 0 {
		return "replaced-in-place"
	}
	return [...]string{"replaced-even", "replaced-odd"}[g%2]
}

// change returns the change from generation g-1 to g.
func (r *replacer) change(g uint64) (c mesh.Change) {
	for service := range generation.Services {
		cluster := &mesh.Cluster{Name: clusterOf(service, g), Localities: make([]mesh.Locality, 1)}
		for i := range generation.Size(g) {
			e := mesh.Endpoint{Address: generation.AddrPort(generation.Endpoint(service, g, i)), Weight: 1, Health: mesh.Healthy}
			cluster.Localities[0].Endpoints = append(cluster.Localities[0].Endpoints, e)
		}
		c.Clusters = append(c.Clusters, cluster)
	}
	c.Listeners = []*mesh.Listener{r.listener(1, g)}
	if g > 0 {
		c.RemovedClusters = []string{clusterOf(1, g-1)}
	}
	return c
}

// listener returns a listener that sends all connections to a service to its cluster.
func (r *replacer) listener(service int, g uint64) *mesh.Listener {
	return &mesh.Listener{
		Name:    [...]string{"replaced-in-place", "replaced-by-another"}[service],
		Address: generation.AddrPort(generation.Service(service)), Protocol: mesh.UDP,
		Chains: []mesh.Chain{{Name: "all", Proxy: mesh.Proxy{Clusters: []mesh.WeightedCluster{{Name: clusterOf(service, g),
			Weight: 1}}}}},
	}
}

// Run replaces by the schedule, in closed loop, and returns the result. A change that begins in the window counts,
// whenever it ends; at least one counts, even if the window is too short for the store.
func (r *replacer) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	defer r.page.Close()
	begin, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	runtime.GC()
	thread, err := pace.LockThread(0)
	if err != nil {
		return nil, err
	}
	t := &replaced{Tally: load.NewTally(), begin: begin, end: end}
	result := &load.Result{
		Generator: WorkReplace, Mode: load.Closed, Seconds: float64(end-begin) / 1e9, Errors: map[string]int64{},
		CPUs: float64(runtime.NumCPU()),
	}
	if _, err = thread.Until(ctx, s.Begin); err == nil {
		result.CPUSeconds, err = s.CPUTime(func() error { return r.loop(ctx, t) })
	}
	if err = errors.Join(err, thread.Close()); err != nil {
		return nil, err
	}
	result.Counts = map[string]float64{generation.Replacements: float64(t.Done),
		generation.ReplacementSeconds: float64(t.spent) / 1e9}
	return result, t.Into(result)
}

func (r *replacer) loop(ctx context.Context, t *replaced) error {
	for ctx.Err() == nil {
		g := r.next
		change := r.change(g)
		began := pace.Now()
		if began >= t.end && t.Done > 0 {
			return nil
		}
		r.page.Begin(g)
		if _, err := r.d.Apply(ctx, change); err != nil {
			return fmt.Errorf("change %d: %w", g, err)
		}
		ended := pace.Now()
		r.page.End(g)
		r.next++
		t.add(began, ended)
	}
	return context.Cause(ctx)
}

// replaced counts the changes of a run.
type replaced struct {
	load.Tally
	begin, end int64
	spent      int64 // ns in changes
}

func (t *replaced) add(began, ended int64) {
	if t.Worked(t.Histogram(generation.ReplacementTime), ended-began, began, ended, t.begin, t.end) {
		t.spent += ended - began
	}
}
