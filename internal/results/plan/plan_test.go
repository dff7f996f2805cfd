package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/test/analysistest"
)

const gib = 1 << 30

// made is a run whose costs are known.
type made struct {
	dir string
	analysistest.Costs
}

func line(fixed, slope float64) func(float64) float64 {
	return func(x float64) float64 { return fixed + slope*x }
}

// usual is a run whose costs are lines.
func usual() made {
	return made{"rate", analysistest.Costs{
		Experiment: "mesh-rate", Factor: "client.rate", Blocks: 6, Mode: load.Open,
		CPU: line(0.1, 0.001), Memory: line(50<<20, 1<<10), BPF: line(0, 0.0001),
	}}
}

func (m made) source(t *testing.T) comparison.Source {
	t.Helper()
	run, trials := m.Record()
	s, err := analysis.Summarize(run, trials)
	if err != nil || !s.Valid {
		t.Fatalf("%v; %v", err, s.InvalidReasons)
	}
	return comparison.Source{Dir: m.dir, Run: run, Summary: s}
}

func near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if !(math.Abs(got-want) <= part*math.Abs(want)) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

// TestMake: a plan has a part for each component and totals over all, and nodes and money follow from these.
func TestMake(t *testing.T) {
	p, err := Make([]comparison.Source{usual().source(t)}, Ask{
		For: map[string]float64{"rate": 600}, Node: &Size{CPUs: 0.25, MemoryBytes: gib}, Prices: &Prices{CPU: 2, Memory: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Arms) != 1 || p.Arms[0].Arm != "mesh" || len(p.Arms[0].Parts) != 3 || len(p.Arms[0].Unplanned) != 0 ||
		len(p.Missing)+len(p.Beyond)+len(p.Conflicts) != 0 {
		t.Fatalf("%+v", p)
	}
	a := p.Arms[0]
	for _, part := range a.Parts {
		share := map[string]float64{"client": 0.2, "server": 0.8}[part.Component]
		switch {
		case share > 0:
			near(t, part.Component+" CPU", part.CPUs.Value, share*0.7, 0.002)
			near(t, part.Component+" memory", part.Memory.Value, share*float64(50<<20+600<<10), 0.002)
			if r := *part.CPUs.Request; r < part.CPUs.Hi || r > part.CPUs.Hi+0.001 {
				t.Errorf("a request of %g CPUs for %+v", r, part.CPUs.Amount)
			}
			if r := *part.Memory.Request; r < part.Memory.Hi || r > part.Memory.Hi+1<<20 || math.Mod(r, 1<<20) != 0 {
				t.Errorf("a request of %g bytes for %+v", r, part.Memory.Amount)
			}
			if f := part.CPUs; !(f.Lo < share*0.7 && share*0.7 < f.Hi) || f.HeldoutError == nil || f.Run != "rate" ||
				f.Range["client.rate"] != [2]float64{100, 800} {
				t.Errorf("%+v", f)
			}
		case part.Component != "eBPF programs" || part.Memory != nil || part.CPUs.Request != nil:
			t.Errorf("%+v", part)
		default:
			near(t, "eBPF", part.CPUs.Value, 0.06, 1e-6)
		}
	}
	near(t, "CPUs", a.CPUs.Value, 0.76, 0.002)
	near(t, "memory", a.Memory.Value, 50<<20+600<<10, 0.002)
	if a.Node == nil || a.Node.Count != 4 || a.Node.Bound != "cpu" {
		t.Errorf("nodes: %+v for %+v", a.Node, a.CPUs)
	}
	near(t, "money", a.PerHour.Value, 2*a.CPUs.Value+4*a.Memory.Value/gib, 1e-9)
	near(t, "most money", a.PerHour.Hi, 2*a.CPUs.Hi+4*a.Memory.Hi/gib, 1e-9)

	all, err := Make([]comparison.Source{usual().source(t)}, Ask{Copies: 100,
		For: map[string]float64{"rate": 600}, Node: &Size{CPUs: 0.25, MemoryBytes: gib}, Prices: &Prices{CPU: 2, Memory: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	of := all.Arms[0]
	near(t, "CPUs of 100", of.CPUs.Value, 100*a.CPUs.Value, 1e-9)
	near(t, "at least", of.CPUs.Lo, 100*a.CPUs.Lo, 1e-9)
	near(t, "at most", of.CPUs.Hi, 100*a.CPUs.Hi, 1e-9)
	near(t, "memory of 100", of.Memory.Value, 100*a.Memory.Value, 1e-9)
	near(t, "nodes of 100", of.Node.Count, math.Ceil(100*a.CPUs.Hi/0.25), 1e-9)
	near(t, "money of 100", of.PerHour.Value, 100*a.PerHour.Value, 1e-9)
	near(t, "a part of one", of.Parts[0].CPUs.Value, a.Parts[0].CPUs.Value, 1e-9)
}

// TestBeyondOfDurations: levels that are durations have their unit.
func TestBeyondOfDurations(t *testing.T) {
	b := Beyond{Factor: "app.delay", Asked: 2, Range: [2]float64{0.001, 0.5}, unit: " s"}
	want := "app.delay 2 s is outside of the measured 0.001 to 0.5 s, by 1.5 s (4 times the largest level)"
	if got := b.Says(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestBeyond: levels outside of the measured range are refused, or named in the plan if Ask.Beyond allows them.
func TestBeyond(t *testing.T) {
	s := []comparison.Source{usual().source(t)}
	for asked, says := range map[float64]string{
		20000: "rate 20,000 is outside of the measured 100 to 800, by 19,200 (25 times the largest level)",
		1e6:   "by 999,200 (1,250 times the largest level)",
		50:    "rate 50 is outside of the measured 100 to 800, by 50 (0.5 times the smallest level)",
	} {
		ask := Ask{For: map[string]float64{"client.rate": asked}, Measure: func(_ record.Run, _ []string, factor string,
			levels []float64) string {
			return fmt.Sprint("measure ", factor, levels)
		}}
		_, err := Make(s, ask)
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), says) ||
			!strings.Contains(fault.HintOf(err), "--beyond") || !strings.Contains(fault.HintOf(err), "measure client.rate[") {
			t.Errorf("%v (%s)", err, fault.HintOf(err))
		}
		ask.Beyond = true
		p, err := Make(s, ask)
		if err != nil || len(p.Beyond) != 1 {
			t.Fatalf("%v, %+v", err, p)
		}
		near(t, "CPUs", p.Arms[0].CPUs.Value, 0.1+0.0011*asked, 0.002)
	}
	for _, edge := range []float64{100, 800} {
		if _, err := Make(s, Ask{For: map[string]float64{"rate": edge}}); err != nil {
			t.Errorf("the edge of the range: %v", err)
		}
	}
}

// TestMissing: the plan names a factor that no run swept, and the command that would measure it.
func TestMissing(t *testing.T) {
	p, err := Make([]comparison.Source{usual().source(t)}, Ask{For: map[string]float64{"rate": 600, "pods": 200},
		Measure: func(run record.Run, arms []string, factor string, levels []float64) string {
			return fmt.Sprint(run.Experiment, arms, factor, levels)
		}})
	if err != nil || len(p.Missing) != 1 {
		t.Fatalf("%v, %+v", err, p)
	}
	m := p.Missing[0]
	if m.Factor != "pods" || m.Asked != 200 || m.Command != "mesh-rate[mesh]pods[50 100 150 200]" ||
		!slices.Contains(m.Of, "client CPU") || !slices.Contains(m.Of, "server memory") {
		t.Errorf("%+v", m)
	}
	// A factor that the run swept must be given a level.
	_, err = Make([]comparison.Source{usual().source(t)}, Ask{For: map[string]float64{"pods": 200}})
	if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), "client.rate") {
		t.Error(err)
	}
}

// TestUnplanned: a cost has no figure if it does not grow linearly, is no demand (as under a closed loop) or was not
// measured. The total that needs it is then unknown.
func TestUnplanned(t *testing.T) {
	bent, flat, unpaced, outside, without, none := usual(), usual(), usual(), usual(), usual(), usual()
	bent.CPU = func(x float64) float64 { return x * x }
	flat.BPF = line(0, 0)
	unpaced.Mode = load.Closed
	outside.Mode = load.Outside
	without.BPF = nil
	none.CPU = nil
	for _, c := range []struct {
		name        string
		run         made
		cpus        bool // there is a total
		parts       int
		metric, why string
	}{
		{"bent", bent, false, 3, "subject_cpus", "not shown to be a line"},
		{"flat", flat, true, 2, "", ""},
		{"unpaced", unpaced, false, 2, "subject_cpus", "no demand"},
		{"outside", outside, false, 2, "subject_cpus", "no demand"},
		{"none", none, false, 3, "subject_cpus", "no trial of this arm has it"},
		{"not measured", without, false, 2, "subject_bpf_cpus", "no trial of this arm has it"},
	} {
		p, err := Make([]comparison.Source{c.run.source(t)}, Ask{For: map[string]float64{"rate": 600},
			Node: &Size{CPUs: 1, MemoryBytes: gib}})
		if err != nil {
			t.Fatal(err)
		}
		a := p.Arms[0]
		if (a.CPUs != nil) != c.cpus || (a.Node != nil) != c.cpus || a.Memory == nil || len(a.Parts) != c.parts {
			t.Errorf("%s: %+v", c.name, a)
		}
		said := slices.ContainsFunc(a.Unplanned, func(u Unplanned) bool {
			return u.Metric == c.metric && strings.Contains(u.Why, c.why)
		})
		if said != (c.metric != "") || !said && len(a.Unplanned) > 0 {
			t.Errorf("%s: %+v", c.name, a.Unplanned)
		}
	}
	few := usual()
	few.Blocks = 5
	_, err := Make([]comparison.Source{few.source(t)}, Ask{For: map[string]float64{"rate": 600}})
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "fewer than 6 blocks") {
		t.Errorf("five blocks: %v", err)
	}
}

// planned returns the plan of the first arm at 600 requests per second, and the summary of the run.
func planned(t *testing.T, run record.Run, trials []record.Trial) (Arm, *analysis.Summary) {
	t.Helper()
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Make([]comparison.Source{{Dir: "rate", Run: run, Summary: s}}, Ask{For: map[string]float64{"rate": 600}})
	if err != nil {
		t.Fatal(err)
	}
	return p.Arms[0], s
}

// TestWithoutWhole: if one component's CPU use is unknown, so is that of the whole arm; the use of the other component
// is not taken for the total.
func TestWithoutWhole(t *testing.T) {
	run, trials := usual().Record()
	for i := range trials {
		if trials[i].Arm == "mesh" {
			delete(trials[i].Metrics, "subject_cpus")
			delete(trials[i].Components["server"], "subject_cpus")
		}
	}
	a, _ := planned(t, run, trials)
	if a.CPUs != nil || a.Memory == nil || len(a.Unplanned) != 1 || a.Unplanned[0].Metric != "subject_cpus" ||
		a.Unplanned[0].Why != noWhole {
		t.Errorf("CPUs %+v, memory %+v, unplanned %+v", a.CPUs, a.Memory, a.Unplanned)
	}
	client := func(p Part) bool { return p.Component == "client" && p.CPUs != nil }
	if !slices.ContainsFunc(a.Parts, client) {
		t.Errorf("no CPUs of client: %+v", a.Parts)
	}
}

// TestWithheld: a line through a level whose value is withheld gives no figure, in a plan or in an answer.
func TestWithheld(t *testing.T) {
	slow := usual()
	slow.Blocks = 12
	run, trials := slow.Record()
	for i := range trials {
		if trials[i].Arm == "mesh" && trials[i].Block < 5 && trials[i].Factors["client.rate"] == "800" {
			trials[i].Validity = record.Validity{Reasons: []record.Reason{{
				Gate: "rate", Message: "slow", Voids: []string{"subject_cpus"},
			}}}
		}
	}
	a, s := planned(t, run, trials)
	if a.CPUs != nil || a.Memory == nil || len(a.Unplanned) != 3 {
		t.Errorf("CPUs %+v, memory %+v, unplanned %+v", a.CPUs, a.Memory, a.Unplanned)
	}
	for _, u := range a.Unplanned {
		if u.Metric != "subject_cpus" || !strings.Contains(u.Why, "is withheld: 5 of 12 trials were lost") {
			t.Errorf("%+v", u)
		}
	}
	for _, m := range append(s.Models, s.ComponentModels...) {
		if (m.Withheld != "") != (m.Metric == "subject_cpus" && m.Arm == "mesh") {
			t.Errorf("%s of %s %s: withheld %q", m.Metric, m.Arm, m.Component, m.Withheld)
		}
	}
	for _, answer := range s.Answers {
		if strings.Contains(answer.Answer, "CPU more for every") {
			t.Errorf("%q", answer.Answer)
		}
	}
}

// TestBent: a cost that bends a little has a figure within the range of the levels, marked as bent and with a wide
// interval, and no figure beyond the range.
func TestBent(t *testing.T) {
	bent := usual()
	bent.CPU = func(x float64) float64 { return 0.1 + 0.001*x + 3e-7*x*x }
	s := []comparison.Source{bent.source(t)}
	p, err := Make(s, Ask{For: map[string]float64{"rate": 600}})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range p.Arms[0].Parts {
		if f := part.CPUs; part.Component != "eBPF programs" && (f.Bent == "" || !(f.Hi > 1.05*f.Value)) {
			t.Errorf("%s: %+v", part.Component, f)
		}
		if f := part.Memory; f != nil && f.Bent != "" {
			t.Errorf("%s: %+v", part.Component, f)
		}
	}
	if p, err = Make(s, Ask{For: map[string]float64{"rate": 900}, Beyond: true}); err != nil || p.Arms[0].CPUs != nil ||
		!slices.ContainsFunc(p.Arms[0].Unplanned, func(u Unplanned) bool { return strings.Contains(u.Why, "line") }) {
		t.Errorf("%v, %+v", err, p)
	}
}

// TestOneFactorTwice: a question that names one factor twice is rejected.
func TestOneFactorTwice(t *testing.T) {
	_, err := Make([]comparison.Source{usual().source(t)}, Ask{For: map[string]float64{"rate": 600, "client.rate": 500}})
	if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), "two levels") {
		t.Error(err)
	}
}

// TestConflicts: only one of two models of a cost is used, and an arm with other settings is left out.
func TestConflicts(t *testing.T) {
	rate, services, other := usual(), usual(), usual()
	services.dir, services.Experiment, services.Factor = "services", "mesh-size", "*.services"
	services.CPU, services.Memory = line(0.2, 0.0001), line(70<<20, 1<<12)
	other.dir, other.Options = "other", map[string]any{"mtls": true}
	p, err := Make([]comparison.Source{rate.source(t), services.source(t)},
		Ask{For: map[string]float64{"rate": 600, "services": 300}})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "CPUs", p.Arms[0].CPUs.Value, 0.76, 0.002)
	if len(p.Conflicts) != 3 || !strings.Contains(p.Conflicts[0], "from rate, and not from services") {
		t.Errorf("%q", p.Conflicts)
	}
	if len(p.Missing) != 1 || p.Missing[0].Factor != "services" {
		t.Errorf("%+v", p.Missing)
	}
	// The model that depends on the given factor is used, whichever run comes first.
	p, err = Make([]comparison.Source{rate.source(t), services.source(t)}, Ask{For: map[string]float64{"services": 300}})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "CPUs", p.Arms[0].CPUs.Value, 0.26, 0.002)
	p, err = Make([]comparison.Source{rate.source(t), other.source(t)}, Ask{For: map[string]float64{"rate": 600}})
	if err != nil || len(p.Conflicts) != 1 || !strings.Contains(p.Conflicts[0], "mtls") {
		t.Errorf("%v, %q", err, p.Conflicts)
	}
}

// TestOneLoad: the CPUs of one load are not added to the memory of another. Swept settings may differ, and other runs
// must have the same load as the run with the best model.
func TestOneLoad(t *testing.T) {
	of := func(m made, spec string) comparison.Source {
		s := m.source(t)
		s.Run.Spec = []byte(spec)
		return s
	}
	withheld, few := usual(), usual()
	withheld.dir, withheld.CPU = "first", func(x float64) float64 { return x * x }
	few.dir, few.Blocks = "first", 5
	const spec = `{"duration":"10s","loads":{"client":{"rate":%d,"body":%d}},"arms":{"mesh":{"hops":2}},"factors":{%q:null}}`
	second := of(usual(), fmt.Sprintf(spec, 100, 64, "client.rate"))
	for name, c := range map[string]struct {
		first    comparison.Source
		cpus     bool // there is a total
		conflict string
	}{
		"another load": {of(withheld, fmt.Sprintf(spec, 100, 65536, "client.rate")), false,
			"mesh of rate is left out: it differs from that of first in loads.client.body"},
		"another duration": {of(withheld, strings.Replace(fmt.Sprintf(spec, 100, 64, "client.rate"), "10s", "1s", 1)), false,
			"mesh of rate is left out: it differs from that of first in duration"},
		"no figures": {of(few, fmt.Sprintf(spec, 100, 65536, "client.rate")), true,
			"mesh of first is left out: it differs from that of rate in loads.client.body"},
		"swept": {of(withheld, fmt.Sprintf(spec, 500, 64, "client.rate")), true,
			"subject CPUs of mesh is from rate, and not from first"},
	} {
		p, err := Make([]comparison.Source{c.first, second}, Ask{For: map[string]float64{"rate": 600}})
		if err != nil {
			t.Fatal(name, err)
		}
		if a := p.Arms[0]; (a.CPUs != nil) != c.cpus || a.Memory == nil || !slices.Contains(p.Conflicts, c.conflict) {
			t.Errorf("%s: CPUs %+v, memory %+v, conflicts %q", name, a.CPUs, a.Memory, p.Conflicts)
		}
	}
}

// TestOtherCluster: a warning names the runs of another cluster, and those of which it is not known.
func TestOtherCluster(t *testing.T) {
	of := func(dir string, nodes map[string]string) comparison.Source {
		m := usual()
		m.dir = dir
		s := m.source(t)
		s.Summary.Warnings = nil
		s.Run.Environment = record.Environment{Hostname: "cluster of 1 node", Kernel: "6.18.0", CPUs: 2, ClusterNodes: nodes}
		return s
	}
	staging, production := map[string]string{"w1": "A"}, map[string]string{"w1": "B"}
	for name, c := range map[string]struct {
		one, two map[string]string
		want     []string
	}{
		"same":    {staging, staging, nil},
		"another": {staging, production, []string{"two: it ran on other machines of a cluster than one: w1"}},
		"unknown": {nil, nil, []string{"two: it is not known whether it ran on the same cluster as one"}},
	} {
		p, err := Make([]comparison.Source{of("one", c.one), of("two", c.two)}, Ask{For: map[string]float64{"rate": 600}})
		if err != nil || !slices.Equal(p.Warnings, c.want) {
			t.Errorf("%s: %v, %q, want %q", name, err, p.Warnings, c.want)
		}
	}
}

// TestOneVersion: the CPUs of one version of a subject are not added to the memory of another.
func TestOneVersion(t *testing.T) {
	const spec = `{"arms":{"mesh":{"subject":%q},"other":{"subject":"envoy"}},"baseline":{"subject":"nginx"},` +
		`"factors":{"client.rate":null}}`
	of := func(m made, subject string, versions map[string]string) comparison.Source {
		s := m.source(t)
		s.Run.Spec, s.Run.Environment.Subjects = []byte(fmt.Sprintf(spec, subject)), versions
		return s
	}
	withheld := usual()
	withheld.dir, withheld.CPU = "old", func(x float64) float64 { return x * x }
	for name, c := range map[string]struct {
		subject  string
		old, new map[string]string
		leaves   string // program in whose version the runs differ
	}{
		"same":      {"haproxy", map[string]string{"haproxy": "2.8"}, map[string]string{"haproxy": "2.8"}, ""},
		"another":   {"haproxy", map[string]string{"haproxy": "2.8"}, map[string]string{"haproxy": "3.2"}, "haproxy"},
		"baseline":  {"haproxy", map[string]string{"nginx": "1.28"}, map[string]string{"nginx": "1.29"}, "nginx"},
		"command":   {"command", map[string]string{"proxyd": "1.0"}, map[string]string{"proxyd": "2.0"}, "proxyd"},
		"other arm": {"haproxy", map[string]string{"envoy": "1.39"}, map[string]string{"envoy": "1.40"}, ""},
		"absent":    {"haproxy", nil, map[string]string{"envoy": "1.40"}, ""},
	} {
		p, err := Make([]comparison.Source{of(withheld, c.subject, c.old), of(usual(), c.subject, c.new)},
			Ask{For: map[string]float64{"rate": 600}})
		if err != nil {
			t.Fatal(name, err)
		}
		conflict := "mesh of rate is left out: it differs from that of old in the version of " + c.leaves
		if left := slices.Contains(p.Conflicts, conflict); left != (c.leaves != "") || left != (p.Arms[0].CPUs == nil) {
			t.Errorf("%s: CPUs %+v, conflicts %q", name, p.Arms[0].CPUs, p.Conflicts)
		}
	}
}

// TestRefused: Make rejects invalid runs, runs on several nodes, and arms that do not exist or have no subject.
func TestRefused(t *testing.T) {
	invalid, nodes, s := usual().source(t), usual().source(t), usual().source(t)
	invalid.Summary.Valid, invalid.Summary.InvalidReasons = false, []string{"it is made so"}
	nodes.Run.Nodes = &record.Nodes{Count: 2}
	inCluster := func(spec string) comparison.Source {
		s := s
		s.Run.Spec = []byte(spec)
		return s
	}
	ask := Ask{For: map[string]float64{"rate": 600}}
	for _, c := range []struct {
		source comparison.Source
		arm    string
		code   fault.Code
		says   string
	}{
		{invalid, "", fault.Invalid, "it is made so"}, {nodes, "", fault.Usage, "several nodes"},
		{inCluster(`{"nodes":3}`), "", fault.Usage, "several nodes"},
		{inCluster(`{"factors":{"nodes":["1","3"]}}`), "", fault.Usage, "several nodes"},
		{inCluster(`{"factors":{"size":{"small":{"nodes":"3"}}}}`), "", fault.Usage, "several nodes"},
		{inCluster(`{"factors":{"size":{"small":{"client.rate":"3"}},"client.rate":["1"]}}`), "mesh", 0, ""},
		{s, "sidecar", fault.Usage, "no such arm"}, {s, record.Direct, fault.Usage, "no such arm"}, {s, "mesh", 0, ""},
	} {
		ask.Arm = c.arm
		_, err := Make([]comparison.Source{c.source}, ask)
		if fault.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v", c.says, err)
		}
	}
}
