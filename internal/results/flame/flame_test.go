package flame

import (
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	"tare/internal/scale/profile"
)

// profileOf returns a profile with the CPU nanoseconds of each stack. A stack lists the part of the trial, which may be
// empty, and then functions from the outermost to the innermost, separated by semicolons.
func profileOf(stacks map[string]int64) *pprof.Profile {
	p := &pprof.Profile{}
	for stack, ns := range stacks {
		names := strings.Split(stack, ";")
		s := &pprof.Sample{Value: []int64{1, ns}, Label: map[string][]string{}}
		if names[0] != "" {
			s.Label[part] = []string{names[0]}
		}
		for i := len(names) - 1; i > 0; i-- {
			s.Location = append(s.Location, &pprof.Location{
				Mapping: &pprof.Mapping{File: "/bin/web"}, Line: []pprof.Line{{Function: &pprof.Function{Name: names[i]}}},
			})
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

// TestPage: the page shows each function with its CPU time and the difference from the baseline, even if its name is
// hostile. Samples that belong to no part of the trial are left out.
func TestPage(t *testing.T) {
	base := &Graph{Title: "direct", Unit: "seconds per request"}
	base.Add(profileOf(map[string]int64{
		"the subject;main;read": 30e6, "the subject;main;write": 10e6, ";elsewhere": 5e6,
	}), 1000)
	arm := &Graph{Title: "proxy", Unit: base.Unit, Base: base}
	arm.Add(profileOf(map[string]int64{"the subject;main;read": 30e6, "the subject;main;write": 2e6}), 400)
	arm.Add(profileOf(map[string]int64{"the subject;main;<script>alert(1)</script>": 20e6, "the subject;tiny": 1e3}), 600)
	html, err := Page("a <b>", []*Graph{base, arm})
	if err != nil {
		t.Fatal(err)
	}
	page := string(html)
	for _, want := range []string{
		"a &lt;b&gt;", "<h2>direct: 40.0 us per request, 1 trial</h2>",
		"<h2>proxy: 52.0 us per request, 2 trials</h2>", "read: 30.0 us, 75.0 %</title>",
		"read: 30.0 us, 57.7 %, 0 s to", "write: 2.00 us, 3.85 %, -8.00 us to the baseline",
		"&lt;script&gt;alert(1)&lt;/script&gt;: 20.0 us, 38.5 %, &#43;20.0 us to the baseline",
		"main: 52.0 us, 100.0 %, &#43;12.0 us to the baseline",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in %s", want, page)
		}
	}
	for _, not := range []string{"elsewhere", "tiny", "<script>", "NaN"} {
		if strings.Contains(page, not) {
			t.Errorf("%q is in the page", not)
		}
	}
	html, err = Page("nothing", []*Graph{{Title: "direct"}})
	if err != nil || strings.Contains(string(html), "NaN") {
		t.Errorf("%v: %s", err, html)
	}
}

// TestBuilds: a function whose symbol has another hash in another build is compared with itself.
func TestBuilds(t *testing.T) {
	base := &Graph{Title: "direct", Unit: "seconds per request"}
	base.Add(profileOf(map[string]int64{"the subject;main;_ZN3web5parse17h9a35ad26eb2bed8dE": 10e6}), 1000)
	arm := &Graph{Title: "new", Unit: base.Unit, Base: base}
	arm.Add(profileOf(map[string]int64{"the subject;main;_ZN3web5parse17h49628cf7209bcd61E": 10e6}), 1000)
	html, err := Page("try", []*Graph{base, arm})
	want := "_ZN3web5parseE: 10.0 us, 100 %, 0 s to the baseline"
	if err != nil || !strings.Contains(string(html), want) {
		t.Errorf("%q is not in %s, %v", want, html, err)
	}
}

// TestNamesOfUserAndKernel: functions of user code and of the kernel that have one name are two boxes, each with the
// colour of its kind.
func TestNamesOfUserAndKernel(t *testing.T) {
	p := profileOf(map[string]int64{"the subject;main;write": 30e6})
	inKernel := profileOf(map[string]int64{"the subject;main;write": 10e6}).Sample[0]
	inKernel.Location[0].Mapping.File = "[kernel]"
	p.Sample = append(p.Sample, inKernel)
	g := &Graph{Title: "direct", Unit: "seconds per request"}
	g.Add(p, 1000)
	html, err := Page("try", []*Graph{g})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"write: 30.0 us, 75.0 %</title>", "write: 10.0 us, 25.0 %</title>", neutral[profile.User], neutral[profile.Kernel],
	} {
		if !strings.Contains(string(html), want) {
			t.Errorf("%q is not in %s", want, html)
		}
	}
}
