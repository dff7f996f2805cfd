package subject

import (
	"context"
	"maps"
	"math"
	"path"
	"slices"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/pace"
	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
)

// The names of the series. They are the titles of the series' charts.
const (
	chargedSeries  = "memory charged, by control group and kind of page"
	residentSeries = "resident memory (PSS), by component and kind of page"
)

// kinds holds memory in bytes by kind of page. A field is nil if the kernel does not report it.
type kinds struct{ anon, cache, shmem, kernel *float64 }

// add adds the memory charged to a group, multiplied by sign (1 or -1). No sum becomes less than 0.
func (k *kinds) add(m cgroup.Memory, sign float64) {
	sum := func(into **float64, v cgroup.Value, less uint64) {
		if !v.OK {
			return
		}
		if *into == nil {
			*into = new(float64)
		}
		**into = math.Max(0, **into+sign*float64(v.N-min(v.N, less)))
	}
	sum(&k.anon, m.Anon, 0)
	sum(&k.shmem, m.Shmem, 0)
	sum(&k.kernel, m.Kernel, 0)
	if m.Shmem.OK {
		sum(&k.cache, m.File, m.Shmem.N)
	}
}

// course collects a series, moment by moment. A part that is missing at a moment has the value 0 there.
type course struct {
	record.Series
	at map[[2]string]int
}

func newCourse(name string) *course {
	return &course{at: map[[2]string]int{}, Series: record.Series{Name: name, Unit: quantity.Bytes}}
}

// moment begins a new moment, ns nanoseconds after the window opened.
func (c *course) moment(ns int64) {
	c.Seconds = append(c.Seconds, math.Round(float64(ns)/1e6)/1e3)
	for i := range c.Parts {
		c.Parts[i].Values = append(c.Parts[i].Values, new(float64))
	}
}

// add adds a value to a part of the current moment. If a value is unknown, the part is unknown at that moment.
func (c *course) add(of, kind string, v *float64) {
	key := [2]string{of, kind}
	i, known := c.at[key]
	if !known {
		i = len(c.Parts)
		c.at[key] = i
		c.Parts = append(c.Parts, record.SeriesPart{Of: of, Kind: kind})
		for range c.Seconds {
			c.Parts[i].Values = append(c.Parts[i].Values, new(float64))
		}
	}
	last := &c.Parts[i].Values[len(c.Seconds)-1]
	if v == nil || *last == nil {
		*last = nil
		return
	}
	**last += *v
}

// addKinds adds the memory charged to a place.
func (c *course) addKinds(place string, k kinds) {
	c.add(place, "anon", k.anon)
	c.add(place, "shmem", k.shmem)
	c.add(place, "kernel", k.kernel)
	c.add(place, "page cache", k.cache)
}

// addResident adds the resident memory of processes, by component.
func (c *course) addResident(all []Process) {
	for _, component := range Components {
		for _, p := range all {
			if p.Component != component {
				continue
			}
			r := p.own().Resident
			anon, file, shmem := float64(r.Anon), float64(r.File), float64(r.Shmem)
			c.add(component, "anon", &anon)
			c.add(component, "shmem", &shmem)
			c.add(component, "mapped file", &file)
		}
	}
}

// The number of moments over which follow spreads its readings (it stops only after twice as many), the maximum number
// of readings by followProcesses, and the minimum time between two moments.
const (
	mostMoments = 100
	apart       = 50 * time.Millisecond
)

// follow repeatedly reads the memory charged to the groups of the sandboxes, from now until the context ends. from and
// to are the edges of the window, by CLOCK_MONOTONIC in nanoseconds.
func (j *joined) follow(ctx context.Context, from, to int64) (*course, error) {
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
	c := newCourse(chargedSeries)
	for pace.Sleep(ctx, every) == nil && len(c.Seconds) < 2*mostMoments {
		if err := r.ReadMemory(); err != nil {
			return c, err
		}
		var pod, overhead, outside kinds
		for _, g := range r.Groups() {
			switch {
			case g.Vanished:
			case pods[g.Path]:
				pod.add(g.Memory, 1)
			case g.Path == subject:
				outside.add(g.Memory, 1)
			}
		}
		for _, g := range r.Groups() { // the subject's group includes the overhead groups
			if subject != "" && !g.Vanished && path.Dir(g.Path) == path.Join(subject, overheadComponent) {
				overhead.add(g.Memory, 1)
				outside.add(g.Memory, -1)
			}
		}
		c.moment(pace.Now() - from)
		c.addKinds(placePod, pod)
		if overhead != (kinds{}) {
			c.addKinds(placeOverhead, overhead)
		}
		if !j.plain() {
			c.addKinds(placeOutside, outside)
		}
	}
	return c, nil
}

// sparing is the pause after a reading of resident memory, as a multiple of the time that the reading took. The kernel
// walks page tables for a reading; with the pause, readings use at most 2 % of a CPU.
const sparing = 50

// followProcesses repeatedly reads the resident memory of the sandboxes' processes, with pauses, from now until the
// context ends.
func (j *joined) followProcesses(ctx context.Context, from int64) *course {
	c := newCourse(residentSeries)
	groups := j.trial.Cgroups().NewResolver()
	for wait := time.Duration(0); pace.Sleep(ctx, wait) == nil && len(c.Seconds) < mostMoments; {
		began := pace.Now()
		var all []Process
		found := j.find()
		for _, s := range j.inOrder() {
			all = append(all, processesOf(groups, s, found[s])...)
		}
		c.moment(began - from)
		c.addResident(all)
		wait = max(apart, sparing*time.Duration(pace.Now()-began))
	}
	return c
}

// pods returns the groups of everything that runs in sandboxes or is going to (a load may be launched just before the
// window), and the name of the trial's tree of groups.
func (j *joined) pods() (paths map[string]bool, tree string, err error) {
	setup := j.trial.Setup()
	names := slices.Collect(maps.Keys(setup.Applications))
	for load, part := range setup.Loads {
		if part.RunsInside() {
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
