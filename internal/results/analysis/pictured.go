package analysis

import (
	"cmp"
	"maps"
	"slices"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
)

// Course is one trial's series over time. The trial is the one with the median final amount among the successful trials
// of an arm at a level (the lower of two in the middle). A course is not a mean, because the times of different trials
// do not coincide. Like curves, courses are computed from the trials when a run is read.
type Course struct {
	Arm     string
	Factors map[string]string
	Index   int // of the trial in the plan
	Of      int // number of trials that have this series
	record.Series
}

// whatShows returns, for each planned trial, the first attempt that did not fail, marked as valid: a tripped gate (a
// condition of validity) voids a trial's metrics, but not what its control groups were charged.
func whatShows(trials []record.Trial) []record.Trial {
	type planned struct {
		index int
		arm   string
	}
	seen := map[planned]bool{}
	var all []record.Trial
	for _, t := range trials {
		key := planned{t.Index, t.Arm}
		if t.Validity.Failed != "" || seen[key] {
			continue
		}
		seen[key] = true
		t.Validity.Valid = true
		all = append(all, t)
	}
	return all
}

// Courses returns the courses of each arm at each level, in the order in which the trials have them.
func Courses(trials []record.Trial) []Course {
	var all []Course
	for _, w := range byPlace(whatShows(trials)) {
		var series lists.Groups[string, Course] // by name
		for i := range w.trials {
			t := &w.trials[i]
			for _, guest := range slices.Sorted(maps.Keys(t.Evidence)) {
				for _, s := range t.Pictured(guest).Series {
					if s = whole(s); len(s.Seconds) < 2 {
						continue
					}
					series.Add(s.Name, Course{Arm: w.arm, Factors: w.at, Index: t.Index, Series: s})
				}
			}
		}
		for _, same := range series.All() {
			slices.SortStableFunc(same, func(a, b Course) int { return cmp.Compare(a.last(), b.last()) })
			middle := same[(len(same)-1)/2]
			middle.Of = len(same)
			all = append(all, middle)
		}
	}
	return all
}

// whole returns a series without the parts that cannot be drawn: parts with a wrong number of values, with unusable
// values, or with only zeros. The series is empty if its times are unusable or no part is left.
func whole(s record.Series) record.Series {
	if slices.ContainsFunc(s.Seconds, func(v float64) bool { return !Usable(v) }) || !slices.IsSorted(s.Seconds) {
		return record.Series{}
	}
	s.Parts = slices.DeleteFunc(slices.Clone(s.Parts), func(p record.SeriesPart) bool {
		some := false
		for _, v := range p.Values {
			if v != nil && (!Usable(*v) || *v < 0) {
				return true
			}
			some = some || v != nil && *v != 0
		}
		return !some || len(p.Values) != len(s.Seconds)
	})
	if len(s.Parts) == 0 {
		return record.Series{}
	}
	return s
}

// last returns the sum of all parts at the last moment.
func (c Course) last() (total float64) {
	for _, p := range c.Parts {
		if v := p.Values[len(p.Values)-1]; v != nil {
			total += *v
		}
	}
	return total
}

// Placement lists the places that are charged for what ran in an arm at a level. Its values are means over the trials
// that did not fail, because the means of parts add up to the mean of their sum, and medians do not. It has no
// intervals.
type Placement struct {
	Arm     string            `json:"arm"`
	Factors map[string]string `json:"factors"`
	Trials  int               `json:"trials"`
	Places  []record.Place    `json:"places"`
}

// placements returns the placements of all arms whose trials record them.
func placements(trials []record.Trial) []Placement {
	var all []Placement
	for _, w := range byPlace(whatShows(trials)) {
		p := Placement{Arm: w.arm, Factors: w.at}
		var each [][]record.Place
		for i := range w.trials {
			t := &w.trials[i]
			for _, guest := range slices.Sorted(maps.Keys(t.Evidence)) {
				if places := t.Pictured(guest).Places; len(places) > 0 {
					each = append(each, places)
				}
			}
		}
		if p.Trials = len(each); p.Trials > 0 {
			p.Places = meanPlaces(each)
			all = append(all, p)
		}
	}
	return all
}

// meanPlaces returns the means of places over trials, by name. A place or a component that is absent from a trial
// counts as 0 there. An amount is left out if it is unknown in a trial that has the place or component.
func meanPlaces(trials [][]record.Place) (all []record.Place) {
	var names []string
	for _, t := range trials {
		for _, p := range t {
			names = lists.Include(names, p.Name)
		}
	}
	for _, name := range names {
		var of []record.Place
		var components []string
		counted := false
		for _, t := range trials {
			for _, p := range t {
				if p.Name != name {
					continue
				}
				of = append(of, p)
				counted = counted || p.Kubernetes != nil
				for _, c := range p.Components {
					components = lists.Include(components, c.Component)
				}
			}
		}
		mean := record.Place{
			Name:      name,
			HardBytes: meanOf(len(trials), of, func(p record.Place) *float64 { return p.HardBytes }),
			SoftBytes: meanOf(len(trials), of, func(p record.Place) *float64 { return p.SoftBytes }),
			CPUs:      meanOf(len(trials), of, func(p record.Place) *float64 { return p.CPUs }),
		}
		if counted {
			mean.Kubernetes = meanOf(len(trials), of, func(p record.Place) *float64 { return p.Kubernetes })
		}
		for _, component := range components {
			var parts []record.PlacedComponent
			for _, p := range of {
				for _, c := range p.Components {
					if c.Component == component {
						parts = append(parts, c)
					}
				}
			}
			mean.Components = append(mean.Components, record.PlacedComponent{
				Component: component,
				Bytes:     meanOf(len(trials), parts, func(c record.PlacedComponent) *float64 { return c.Bytes }),
				CPUs:      meanOf(len(trials), parts, func(c record.PlacedComponent) *float64 { return c.CPUs }),
			})
		}
		all = append(all, mean)
	}
	return all
}

// meanOf returns the sum of amounts divided by n; nil if one of them is unknown.
func meanOf[T any](n int, all []T, of func(T) *float64) *float64 {
	sum := 0.0
	for _, one := range all {
		v := of(one)
		if v == nil || !Usable(*v) {
			return nil
		}
		sum += *v
	}
	sum /= float64(n)
	return &sum
}
