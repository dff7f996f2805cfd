package sandbox

import (
	"context"
	"maps"
	"slices"
	"time"

	"tare/internal/host/cgroup"
	"tare/internal/host/proc"
	"tare/internal/kind"
	"tare/internal/pace"
)

// Moment is the memory of the sandboxes at one moment, as the kernel charges it.
type Moment struct {
	Seconds   float64 `json:"seconds"` // since the window opened: before that it is negative
	Pod       Kinds   `json:"pod"`     // of the groups where what runs the applications belongs
	Outside   Kinds   `json:"outside"` // of the subject's groups beside them
	Available *uint64 `json:"available_bytes"`
}

// Kinds is memory in bytes by kind of page; null where the kernel does not tell.
type Kinds struct {
	Anon   *uint64 `json:"anon"`
	Cache  *uint64 `json:"cache"` // file - shmem
	Shmem  *uint64 `json:"shmem"`
	Kernel *uint64 `json:"kernel"`
}

func (k *Kinds) add(m cgroup.Memory) {
	sum := func(into **uint64, v cgroup.Value, less uint64) {
		if !v.OK {
			return
		}
		if *into == nil {
			*into = new(uint64)
		}
		**into += v.N - min(v.N, less)
	}
	sum(&k.Anon, m.Anon, 0)
	sum(&k.Shmem, m.Shmem, 0)
	sum(&k.Kernel, m.Kernel, 0)
	if m.Shmem.OK {
		sum(&k.Cache, m.File, m.Shmem.N)
	}
}

// Moments are at most so many, and at least so far apart.
const (
	mostMoments = 100
	apart       = 100 * time.Millisecond
)

// follow reads the memory of the sandboxes again and again, from now until the context ends. from and to are the edges
// of the window, by CLOCK_MONOTONIC in nanoseconds.
func (j *joined) follow(ctx context.Context, from, to int64) ([]Moment, error) {
	pods, tree, err := j.pods()
	if err != nil || len(pods) == 0 {
		return nil, err
	}
	subject := ""
	if !j.plain() {
		g, err := j.trial.SubjectGroup("", nil)
		if err != nil {
			return nil, err
		}
		subject = g.Path()
	}
	r, err := cgroup.NewReaderOf(j.trial.Cgroups(), []string{tree})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	every := max(apart, time.Duration(to-pace.Now())/mostMoments)
	var all []Moment
	for pace.Sleep(ctx, every) == nil && len(all) < 2*mostMoments {
		if err := r.ReadMemory(); err != nil {
			return all, err
		}
		m := Moment{Seconds: float64(pace.Now()-from) / 1e9}
		for _, g := range r.Groups() {
			switch {
			case g.Vanished:
			case pods[g.Path]:
				m.Pod.add(g.Memory)
			case g.Path == subject:
				m.Outside.add(g.Memory)
			}
		}
		if now, err := (proc.FS{}).Available(); err == nil {
			m.Available = &now
		}
		all = append(all, m)
	}
	return all, nil
}

// pods are the groups of all that runs in sandboxes, or will: a load may be launched only when the window is near.
func (j *joined) pods() (paths map[string]bool, tree string, err error) {
	setup := j.trial.Setup()
	names := slices.Collect(maps.Keys(setup.Applications))
	for load, part := range setup.Loads {
		if in, ok := part.Kind.(kind.Inside); ok && in.RunsInside(part.Options) {
			names = append(names, load)
		}
	}
	paths = map[string]bool{}
	for _, n := range names {
		g, err := j.trial.PartGroup(n)
		if err != nil {
			return nil, "", err
		}
		paths[g.Path()], tree = true, g.TreeName()
	}
	return paths, tree, nil
}
