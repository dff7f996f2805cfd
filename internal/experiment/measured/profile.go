package measured

import (
	"cmp"
	"path"
	"slices"

	pprof "github.com/google/pprof/profile"

	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
	"tare/internal/scale/profile"
)

// The metrics of which the functions of a profile are parts: where there are no requests, the CPU time of a second.
const (
	perRequest = "cpu_seconds_per_request"
	perSecond  = "subject_cpus"
)

// Profile is what the functions of a trial used, by its profile, whose samples it gives the labels of the trial: its
// arm, its factors, and the part of the trial, if they are of one.
func (m *Measured) Profile(p *pprof.Profile) *record.Profile {
	type key struct {
		part string
		profile.Function
	}
	all, of := map[key]*record.FunctionTime{}, &record.Profile{Lacks: p.Comments}
	for _, s := range p.Sample {
		s.Label["arm"] = []string{m.Arm}
		for name, level := range m.Factors {
			if s.Label[name] == nil {
				s.Label[name] = []string{level}
			}
		}
		part := m.partOf(s.Label[profile.Label])
		if part == "" {
			continue
		}
		s.Label["part"] = []string{part}
		k := key{part, profile.FunctionOf(s)}
		if all[k] == nil {
			all[k] = &record.FunctionTime{Part: part, Function: k.Function}
		}
		all[k].Samples += int(s.Value[0])
		all[k].Seconds += float64(s.Value[1]) / 1e9
		of.Samples += int(s.Value[0])
	}
	for _, f := range all {
		of.Functions = append(of.Functions, *f)
	}
	slices.SortFunc(of.Functions, func(a, b record.FunctionTime) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Name, b.Name), cmp.Compare(a.File, b.File))
	})
	if len(of.Functions) > record.MaxFunctions {
		for _, f := range of.Functions[record.MaxFunctions:] {
			of.Rest += f.Seconds
		}
		of.Functions = of.Functions[:record.MaxFunctions]
	}
	of.Metric, of.Divisor = perSecond, m.Ledger.Window.Seconds
	if rate, ok := m.RequestRate(); ok && rate > 0 {
		of.Metric, of.Divisor = perRequest, rate*m.Ledger.Window.Seconds
	}
	return of
}

// partOf names the part of the trial that a group is of; empty where it is of none.
func (m *Measured) partOf(group []string) (words string) {
	if len(group) == 0 {
		return ""
	}
	ledger.Ancestors(group[0], func(at string) {
		if role, is := m.roles[at]; is && words == "" {
			words = role.Words(path.Base(at))
		}
	})
	return words
}
