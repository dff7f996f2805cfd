package measured

import (
	"fmt"
	"math"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
	"tare/internal/scale/profile"
)

// sampled returns a profile with one sample for each of the given functions, by group.
func sampled(groups map[string][]string) *pprof.Profile {
	p := &pprof.Profile{Comments: []string{"lost samples: 1"}}
	for group, functions := range groups {
		for _, name := range functions {
			s := &pprof.Sample{Value: []int64{2, 1e6}, Label: map[string][]string{}, Location: []*pprof.Location{{
				Mapping: &pprof.Mapping{File: "/bin/web"}, Line: []pprof.Line{{Function: &pprof.Function{Name: name}}},
			}}}
			if group != "" {
				s.Label[profile.Label] = []string{group}
			}
			p.Sample = append(p.Sample, s)
		}
	}
	return p
}

// TestProfile: samples of a part's group, and of groups below it, are counted for the part; those of other groups for
// none.
func TestProfile(t *testing.T) {
	m := &Measured{
		Trial: record.Trial{
			PlannedTrial: record.PlannedTrial{Arm: "proxy", Factors: map[string]string{
				"rate": "500", "context": "small", "group": "large", "part": "none", "arm": "left",
			}},
			Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 4}},
		},
		Setup: &kind.Setup{},
		roles: map[string]GroupRole{
			"/t/subject": NewRole(kind.Subject, ""), "/t/work/web": NewRole(kind.Application, "web"),
			"/t/work/clients": NewRole(kind.Load, "clients"), "/t/subject/agent": NewRole(kind.Subject, "agent"),
		},
	}
	p := sampled(map[string][]string{
		"/t/subject": {"f", "f"}, "/t/subject/agent/deep": {"f"}, "/t/work/web": {"f", "g"}, "/t/work/clients": {"h"},
		"/t": {"f"}, "/other": {"f"}, "": {"f"},
	})
	got := m.Profile(p)
	is := map[string]float64{}
	for _, f := range got.Functions {
		is[f.Part+" "+f.Name] = f.Seconds
	}
	want := map[string]float64{
		"the subject f": 2e-3, "the subject's agent f": 1e-3, "the application web f": 1e-3, "the application web g": 1e-3,
		"the load clients h": 1e-3,
	}
	if fmt.Sprint(is) != fmt.Sprint(want) || got.Samples != 12 || got.Metric != "subject_cpus" || got.Divisor != 4 ||
		len(got.Lacks) != 1 {
		t.Errorf("%v of %+v, want %v", is, got, want)
	}
	for _, s := range p.Sample {
		if s.Label["arm"][0] != "proxy" || s.Label["rate"][0] != "500" {
			t.Errorf("labels are %v", s.Label)
		}
	}
	m.Loads = map[string]load.Result{"clients": {Done: 100, Seconds: 2}}
	if got = m.Profile(p); got.Metric != "cpu_seconds_per_request" || got.Divisor != 200 {
		t.Errorf("of 50 requests a second: %+v", got)
	}
	m.Loads = map[string]load.Result{"clients": {Done: 100, Opened: 100, Seconds: 2}}
	if got = m.Profile(p); got.Metric != "cpu_seconds_per_connection" || got.Unit != "seconds per connection" ||
		got.Divisor != 200 {
		t.Errorf("of 50 connections a second: %+v", got)
	}
	p.Sample[0].Label[profile.LabelContext] = []string{profile.Interrupt}
	if is := m.Profile(p); is.Samples >= got.Samples && p.Sample[0].Label["part"] != nil {
		t.Errorf("with an interrupt that is counted apart there are %d samples, and %d without", is.Samples, got.Samples)
	}
}

// TestLongNames: different names with the same beginning, such as those of C++ templates, remain different functions; a
// long name is truncated in the record.
func TestLongNames(t *testing.T) {
	m := &Measured{
		Trial: record.Trial{Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 1}}}, Setup: &kind.Setup{},
		roles: map[string]GroupRole{"/t": NewRole(kind.Subject, "")},
	}
	long := "_ZN5Envoy" + strings.Repeat("x", 241)
	got := m.Profile(sampled(map[string][]string{"/t": {long + "a", long + "b", long + "a"}})).Functions
	if len(got) != 2 || got[0].Seconds != 2e-3 || got[0].Name == got[1].Name || len(got[0].Name) > maxFunctionName+20 {
		t.Errorf("%+v", got)
	}
}

// TestProfileIsBounded: if there are more functions than a record may have, it has the largest, and the rest includes
// the others.
func TestProfileIsBounded(t *testing.T) {
	m := &Measured{
		Trial: record.Trial{Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 1}}}, Setup: &kind.Setup{},
		roles: map[string]GroupRole{"/t": NewRole(kind.Subject, "")},
	}
	var all []string
	for i := range record.MaxFunctions + 7 {
		all = append(all, fmt.Sprintf("f%d", i))
	}
	p := sampled(map[string][]string{"/t": append(all, "f3")})
	got := m.Profile(p)
	if len(got.Functions) != record.MaxFunctions || got.Functions[0].Name != "f3" || math.Abs(got.Rest-7e-3) > 1e-9 {
		t.Errorf("%d functions, %+v first, the rest %g", len(got.Functions), got.Functions[0], got.Rest)
	}
}
