package measured

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"path"
	"slices"

	pprof "github.com/google/pprof/profile"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
	"tare/internal/scale/profile"
)

// The labels of samples that say the arm and the part of the trial. A factor with one of these names has no label.
const (
	labelArm  = "arm"
	labelPart = "part"
)

// maxFunctionName bounds the names of functions and of their files in a record, in bytes, without the hash that the
// function bounded appends.
const maxFunctionName = 200

// bounded shortens a long name, and appends a hash of the whole, so that names with the same beginning differ.
func bounded(name string) string {
	if short := text.ClipLine(name, maxFunctionName); short != name {
		h := fnv.New32a()
		h.Write([]byte(name))
		return fmt.Sprintf("%s (%08x)", short, h.Sum32())
	}
	return name
}

// Profile returns the CPU time that the functions of a trial used, from its profile p. It labels each sample of p with
// the trial's factors and arm, and with the part of the trial to which the sample belongs, if any.
func (m *Measured) Profile(p *pprof.Profile) *record.Profile {
	type key struct {
		part string
		profile.Function
	}
	all, of := map[key]*record.FunctionTime{}, &record.Profile{Lacks: p.Comments}
	for _, s := range p.Sample {
		for name, level := range m.Factors {
			if s.Label[name] == nil && name != labelPart && name != profile.LabelContext {
				s.Label[name] = []string{level}
			}
		}
		s.Label[labelArm] = []string{m.Arm}
		part := m.partOf(s.Label[profile.Label])
		if part == "" {
			continue
		}
		s.Label[labelPart] = []string{part}
		if s.Label[profile.LabelContext] != nil { // not included in the CPU time of any group
			continue
		}
		k := key{part, profile.FunctionOf(s)}
		k.Name, k.File = bounded(k.Name), bounded(k.File)
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
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Part, b.Part), a.Compare(b.Function))
	})
	if len(of.Functions) > record.MaxFunctions {
		for _, f := range of.Functions[record.MaxFunctions:] {
			of.Rest += f.Seconds
		}
		of.Functions = of.Functions[:record.MaxFunctions]
	}
	of.Metric, of.Unit, of.Divisor = m.profiledAs()
	return of
}

// profiledAs returns how a report shows the CPU time of a trial's functions: per request, per connection if each
// request opens one, or per second if neither is known. The profile is void if the returned metric is. CPU seconds
// divided by divisor are in the returned unit.
func (m *Measured) profiledAs() (metric, unit string, divisor float64) {
	seconds := m.Ledger.Window.Seconds
	if rate, ok := m.RequestRate(); ok && rate > 0 {
		return "cpu_seconds_per_request", quantity.Seconds + " per request", rate * seconds
	}
	if rate, ok := m.ConnectionRate(); ok && rate > 0 {
		return "cpu_seconds_per_connection", quantity.Seconds + " per connection", rate * seconds
	}
	return "subject_cpus", quantity.CPUs, seconds
}

// partOf describes the part of the trial to which a group belongs, or returns "" if it belongs to none.
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
