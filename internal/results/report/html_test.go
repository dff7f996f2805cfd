package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"regexp"
	"strings"
	"testing"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
)

func htmlOf(t testing.TB, run record.Run, trials []record.Trial, o report.HTMLOptions) (string, *analysis.Summary) {
	t.Helper()
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := report.HTML(&b, s, run, trials, o); err != nil {
		t.Fatal(err)
	}
	return b.String(), s
}

// prose returns the text of the page without markup, styles and scripts.
func prose(page string) string {
	page = regexp.MustCompile(`(?s)<(style|script)[^>]*>.*?</(style|script)>`).ReplaceAllString(page, " ")
	page = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")
	return strings.Join(strings.Fields(html.UnescapeString(page)), " ")
}

// TestHTMLSaysWhatTextSays: the page says what the other formats say, in the expected order, with and without charts.
func TestHTMLSaysWhatTextSays(t *testing.T) {
	for name, make := range cases() {
		for _, without := range []bool{true, false} {
			run, trials := make()
			page, s := htmlOf(t, run, trials, report.HTMLOptions{Dir: "runs/quickstart", NoCharts: without})
			text := prose(page)
			want := []string{run.Question}
			said := s.InvalidReasons // the page lists these instead of an answer
			if s.Valid {
				for _, a := range s.Answers {
					said = append(said, a.Answer)
				}
			}
			for _, x := range said {
				want = append(want, strings.Join(strings.Fields(strings.ReplaceAll(x, "\x1b", " ")), " "))
			}
			at := 0
			for _, w := range append(want, "Estimates", "Validity", "Environment", "Run it again",
				"tare run quickstart --seed 42") {
				i := strings.Index(text[at:], w)
				if i < 0 {
					t.Errorf("%s: no %q after what stands before it", name, w)
					continue
				}
				at += i
			}
			for _, e := range s.Estimates {
				if e.Lo == nil || e.Arm == record.AA {
					continue
				}
				if w := quantity.Interval(e.Value, *e.Lo, *e.Hi, e.Unit); !strings.Contains(text, w) {
					t.Errorf("%s: %s of %s, %s, is in no table", name, e.Metric, e.Arm, w)
				}
			}
			for _, x := range s.Trials.Excluded[:min(3, len(s.Trials.Excluded))] {
				if why, _, _ := strings.Cut(x.Why, "\x1b"); !strings.Contains(text, strings.TrimSpace(why)) {
					t.Errorf("%s: the trial left out is not explained: %s", name, x.Why)
				}
			}
			if strings.ContainsRune(page, '\x1b') {
				t.Errorf("%s: a control character went through", name)
			}
			if missing := strings.Contains(page, "tables and no charts"); without && !missing {
				t.Errorf("%s: nothing says that charts are missing", name)
			}
			if without && (strings.Contains(page, "<script") || strings.Contains(page, "<figure") ||
				strings.Contains(page, "<details>")) {
				t.Errorf("%s: without charts there are scripts, empty figures or folded tables", name)
			}
		}
	}
}

// TestHTMLFetchesNothing: nothing on the page may point outside it.
func TestHTMLFetchesNothing(t *testing.T) {
	run, trials := cases()["sweep"]()
	page, _ := htmlOf(t, run, trials, report.HTMLOptions{})
	for _, m := range regexp.MustCompile(`(?:src|href|action|poster|data)\s*=\s*"([^"]*)"`).FindAllStringSubmatch(page,
		-1) {
		if !strings.HasPrefix(m[1], "#") {
			t.Errorf("the page refers to %s", m[0])
		}
	}
	if !strings.Contains(page, `content="default-src &#39;none&#39;`) {
		t.Error("the page has no policy")
	}
}

func TestHTMLEscapes(t *testing.T) {
	evil := `</script><script>alert(1)</script><!--"'>` + "\u2028&amp;"
	run, trials := cases()["invalid"]()
	run.Experiment, run.Question, run.Command, run.Environment.Hostname, run.ID = evil, evil, []string{evil}, evil, evil
	run.Environment.Subjects = map[string]string{evil: evil}
	run.Spec = json.RawMessage(`{"gates":{"<script>alert(2)</script>":"<script>alert(3)</script>"}}`)
	for i := range trials {
		trials[i].Arm = strings.Replace(trials[i].Arm, "candidate", evil, 1)
		trials[i].Factors = map[string]string{evil: evil}
		trials[i].Metrics[evil+"_seconds"] = float64(i)
		trials[i].Validity.Failed = strings.Replace(trials[i].Validity.Failed, "client", evil, 1)
	}
	page, _ := htmlOf(t, run, trials, report.HTMLOptions{Dir: evil})
	if n := strings.Count(page, "<script"); n > 2 {
		t.Errorf("%d scripts, want the data and the charts", n)
	}
	if strings.Contains(page, "alert(1)<") || strings.Contains(page, "alert(2)<") || strings.Contains(page, "alert(3)<") {
		t.Error("a name became markup")
	}
	if data := dataOf(page); data != "" {
		if strings.ContainsAny(data, "<>&\u2028") {
			t.Error("the data of the charts holds markup")
		}
		if !json.Valid([]byte(data)) {
			t.Error("the data of the charts is no JSON")
		}
	}
}

// TestBudgetOfNodes: ledgers of the coordinator's machine are no budget of trials that ran on other machines.
func TestBudgetOfNodes(t *testing.T) {
	run, trials := cases()["charged"]()
	for nodes, want := range map[*record.Nodes]bool{nil: true, {Local: true, Count: 2}: true, {Count: 2}: false} {
		run.Nodes = nodes
		page, _ := htmlOf(t, run, trials, report.HTMLOptions{})
		if got := strings.Contains(page, "Where the CPU went"); got != want {
			t.Errorf("nodes %+v: %v", nodes, got)
		}
	}
}

// dataOf returns the JSON that the charts are drawn from; empty if the page has none.
func dataOf(page string) string {
	_, rest, ok := strings.Cut(page, `id="data">`)
	if !ok {
		return ""
	}
	data, _, _ := strings.Cut(rest, "</script>")
	return data
}

// TestHTMLBudgetCloses: the parts of the CPU budget and idle time add up to the capacity, even if eBPF time could not
// be split in single windows and is placed by the samples of all trials together.
func TestHTMLBudgetCloses(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	client := "/trial/client"
	run, trials := analysistest.Quickstart(plain)
	for i := range trials {
		l := trials[i].Ledger
		l.CPU = ledger.CPU{Capacity: 4, Idle: 2.5, Steal: 0.1, Unexplained: -0.02, Lines: []ledger.CPULine{
			{Name: ledger.LineGroups, Seconds: 1.2}, {Name: ledger.LineRoot, Seconds: 0.1},
			{Name: ledger.LineKernel, Seconds: 0.06},
			{Name: ledger.LineBPF}, {Name: ledger.LineInterrupts, Seconds: 0.02}, {Name: ledger.LineSelf, Seconds: 0.04},
		}}
		l.Cgroups = []ledger.Cgroup{{Path: client, Role: "load", CPUSeconds: f(0.5)},
			{Path: "/trial/server", Role: "app", CPUSeconds: f(0.6)}}
		if trials[i].Arm == "candidate" {
			trials[i].Subject = json.RawMessage(`{"programs":[{"id":7}]}`)
			l.Programs = []ledger.Program{{ID: 8, RunSeconds: f(0.01)},
				{ID: 7, RunSeconds: f(0.03), Seen: []ledger.Seen{{Cgroup: &client, Context: ledger.Task, Samples: 5}}}}
		}
	}
	page, _ := htmlOf(t, run, trials, report.HTMLOptions{NoCharts: true})
	_, table, _ := strings.Cut(page, `aria-label="CPU budget"`)
	table, _, _ = strings.Cut(table, "</table>")
	got := prose("<p " + table)
	for _, want := range []string{
		"application processes 600 ms [15.0 %] 600 ms [15.0 %] 600 ms [15.0 %]",
		"load generator 500 ms [12.5 %] 500 ms [12.5 %] 460 ms [11.5 %]", // without the eBPF time
		"subject's eBPF programs 0 s [0.00 %] 0 s [0.00 %] 30.0 ms [0.750 %]",
		"other eBPF programs 0 s [0.00 %] 0 s [0.00 %] 10.0 ms [0.250 %]",
		"other control groups 100 ms [2.50 %]", "unexplained -20.0 ms [-0.500 %]", "idle idle 2.50 s [62.5 %]",
		"capacity capacity 4.00 s [100 %]",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// charged returns a run whose ledgers have charges for groups and programs. A quarter of the samples of eBPF programs
// are in the application.
func charged() (record.Run, []record.Trial) {
	f := func(v float64) *float64 { return &v }
	hard := int64(100e6)
	server, client := "/trial/server", "/trial/client"
	run, trials := analysistest.Quickstart(plain)
	for i := range trials {
		l := trials[i].Ledger
		l.Cgroups = []ledger.Cgroup{
			{Path: server, Role: "app", CPUSeconds: f(0.5), Memory: &ledger.Memory{Hard: &hard},
				Charged: ledger.Charged{Charge: ledger.ChargeWorkload, Workload: "server"}},
			{Path: client, Role: "load", CPUSeconds: f(0.5), Charged: ledger.Charged{Charge: ledger.ChargeLoad}},
		}
		l.Programs, l.Maps = []ledger.Program{}, []ledger.Map{}
		if trials[i].Arm == "candidate" {
			tare := ledger.Charged{Charge: ledger.ChargeTare}
			subject := ledger.Cgroup{Path: "/trial/subject", CPUSeconds: f(0.25), Charged: tare}
			subject.Memory = &ledger.Memory{Hard: &hard}
			l.Cgroups = append(l.Cgroups, subject)
			l.Programs = []ledger.Program{{
				Charged: tare, ID: 7, RunSeconds: f(0.04), Shares: []ledger.Share{{Seconds: 0.04}},
				Seen: []ledger.Seen{
					{Cgroup: &client, Context: ledger.Task, Samples: 9}, {Cgroup: &server, Context: ledger.Task, Samples: 3},
				},
			}}
		}
		l.Settle()
	}
	return run, trials
}

// TestHTMLGross: gross, tare and net of an application are means over the trials of an arm, and the samples of all
// trials together determine where programs ran.
func TestHTMLGross(t *testing.T) {
	run, trials := charged()
	page, _ := htmlOf(t, run, trials, report.HTMLOptions{NoCharts: true})
	_, table, _ := strings.Cut(page, `aria-label="Gross, tare and net"`)
	table, _, _ = strings.Cut(table, "</table>")
	got := prose("<p " + table)
	for _, want := range []string{"server direct 500 ms 500 ms 0 s 100 MB 100 MB 0 B",
		"server candidate 750 ms 490 ms 260 ms 200 MB 100 MB 100 MB"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestHTMLAnswerTables: the answers to some questions have separate tables, in which an unknown value is a dash, never
// 0.
func TestHTMLAnswerTables(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	for i := range trials {
		m := trials[i].Metrics
		trials[i].Factors = map[string]string{"*.services": "10"}
		m["limited_cpus"], m["limit_cpus"] = 0.26, 0.25
		if trials[i].Arm == "candidate" {
			m["limited_bpf_cpus"] = 0.2
			trials[i].Counts = map[string]record.Count{"bpf_limited_task_share": {In: 60, Of: 100},
				"bpf_limited_softirq_share": {In: 20, Of: 100}, "bpf_limited_inside_share": {In: 80, Of: 100}}
		}
		m["sched_delay_max_seconds"] = 0.01 * float64(i+1)
		if trials[i].Arm == "candidate" && trials[i].Block > 0 { // a missed rate does not void the wait for a CPU
			trials[i].Validity = record.Validity{Reasons: []record.Reason{{
				Gate: "rate", Voids: []string{"latency_p50_seconds"},
			}}}
		}
	}
	trials[len(trials)-1].Validity = record.Validity{} // its wait is the longest, and must not count
	for i := range run.Plan {
		run.Plan[i].Factors = trials[i].Factors
	}
	page, _ := htmlOf(t, run, trials, report.HTMLOptions{NoCharts: true})
	table := func(label string) string {
		_, table, _ := strings.Cut(page, `aria-label="`+label+`"`)
		table, _, _ = strings.Cut(table, "</table>")
		return prose("<p " + table)
	}
	limit := table("The CPU limit")
	for _, want := range []string{
		"direct, services 10 0.250 CPU 0.260 CPU [0.260, 0.260] - - - - -",
		"candidate, services 10 0.250 CPU 0.260 CPU [0.260, 0.260] - 0.200 CPU [0.200, 0.200] 0.150 CPU 0.0500 CPU " +
			"0.0600 CPU",
	} {
		if !strings.Contains(limit, want) {
			t.Errorf("no %q in\n%s", want, limit)
		}
	}
	longest := 0.0
	for _, x := range trials {
		if x.Validity.Stands("sched_delay_max_seconds") && x.Arm == "candidate" {
			longest = max(longest, x.Metrics["sched_delay_max_seconds"])
		}
	}
	waits, want := table("Waits for a CPU"), " "+quantity.Value(longest, quantity.Seconds)
	if !strings.Contains(waits, "candidate, services 10 - - ") || !strings.HasSuffix(waits, want) {
		t.Errorf("want no quantiles and the longest wait of all trials whose waits count,%s, in\n%s", want, waits)
	}
	if strings.Contains(prose(page), "*.services 10") {
		t.Error("a level has a star in front")
	}
}

// TestHTMLWithheld: a withheld value is in no chart, and in no table except that of the estimates, which marks it as
// withheld.
func TestHTMLWithheld(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 12, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6})
	run.Metrics = measured.Definitions()
	var voids []string
	for _, d := range run.Metrics {
		if strings.HasPrefix(d.Name, "latency_") || d.Name == "limited_cpus" {
			voids = append(voids, d.Name)
		}
	}
	for i := range trials {
		trials[i].Metrics["limited_cpus"] = 0.26
		if trials[i].Arm == "candidate" && trials[i].Block < 5 {
			trials[i].Validity = record.Validity{Reasons: []record.Reason{{Gate: "rate", Voids: voids}}}
		}
	}
	page, s := htmlOf(t, run, trials, report.HTMLOptions{})
	withheld := func(name string) bool {
		e := s.Find(name, "candidate", nil)
		return e == nil || e.Withheld != ""
	}
	if !withheld("latency_p50_seconds") || !withheld("limited_cpus") {
		t.Fatal("the candidate's latency is not withheld")
	}
	for label, want := range map[string]string{"Latency by percentile": "direct", "The CPU limit": "direct"} {
		_, table, _ := strings.Cut(page, `aria-label="`+label)
		table, _, _ = strings.Cut(table, "</table>")
		if !strings.Contains(table, want) || strings.Contains(table, "candidate") {
			t.Errorf("%s:\n%s", label, prose("<p "+table))
		}
	}
	var data struct {
		Arms      []struct{ Name string }
		Metrics   []struct{ Name string }
		Estimates []struct{ Metric, Arm int }
		Curves    []struct{ Arm int }
	}
	if err := json.Unmarshal([]byte(dataOf(page)), &data); err != nil {
		t.Skip("built without charts")
	}
	for _, e := range data.Estimates {
		if name := data.Metrics[e.Metric].Name; data.Arms[e.Arm].Name == "candidate" && withheld(name) {
			t.Errorf("%s of the candidate is in a chart", name)
		}
	}
	for _, c := range data.Curves {
		if data.Arms[c.Arm].Name == "candidate" {
			t.Error("the candidate has a curve of latency")
		}
	}
}

func FuzzHTML(f *testing.F) {
	f.Add("quickstart", "candidate", "rate", "1000", "latency_p50_seconds", 1e-6, 2e-6, `{"gates":{"lag":"1s"}}`)
	f.Add("", "", "", "", "", 0.0, -1.0, ``)
	f.Add("</script>", "<!--", "<script>", "\n", "_per_", 1e300, math.Inf(1), `{"gates":[]}`)
	f.Add("\u2028\xff", "aa", "a", "1e309", "x_bytes", math.NaN(), 1e-320, `{"gates":{"a":{"b":[1]}}}`)
	f.Add("mine", "candidate", "*.services", "10", "map_after_bytes", 1e6, 1e3, `{}`)
	f.Add("mine", "candidate", "client.count", "4", "limited_cpus", 0.2, -0.1, `{}`)
	f.Add("mine", "candidate", "steps", "-1", "sched_delay_max_seconds", -1.0, 0.3, `{}`)
	f.Add("0", "0", "0", "0", "0", 84.000002, 2e-06, "\x1b") // a spec that is not JSON
	f.Fuzz(func(t *testing.T, name, arm, factor, level, metric string, base, value float64, spec string) {
		run := record.Run{
			Schema: record.RunSchema, Experiment: name, Question: arm, Command: []string{metric, level},
			Spec: json.RawMessage(spec), Metrics: measured.Definitions(),
		}
		var trials []record.Trial
		for i := range 18 {
			trial := record.Trial{Metrics: map[string]float64{metric: base + float64(i)*value},
				Validity: record.Validity{Valid: i != 17, Failed: ""}}
			trial.PlannedTrial = record.PlannedTrial{Index: i, Block: i / 3, Arm: []string{record.Direct, record.AA, arm}[i%3],
				Factors: map[string]string{factor: level}}
			trial.Ledger = &ledger.Ledger{CPU: ledger.CPU{Capacity: base, Idle: value,
				Lines: []ledger.CPULine{{Name: metric, Seconds: value}}},
				Cgroups: []ledger.Cgroup{{Path: arm, Role: "app", CPUSeconds: &value, Memory: &ledger.Memory{}}}}
			trials = append(trials, trial)
		}
		page, _ := htmlOf(t, run, trials, report.HTMLOptions{Dir: level})
		if strings.Count(page, "<script") > 2 || strings.ContainsAny(page, "\x1b\x00") {
			t.Fatal("something went through")
		}
		if data := dataOf(page); data != "" && !json.Valid([]byte(data)) {
			t.Fatal("the data is no JSON")
		}
	})
}

func BenchmarkHTML(b *testing.B) {
	run, trials := cases()["sweep"]()
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var out bytes.Buffer
		if err := report.HTML(&out, s, run, trials, report.HTMLOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestHTMLEventTablesOfUnknownCounts: if some trials lack a count, its sum is over the other trials, says so, and is
// not given as a part of a sum over all trials.
func TestHTMLEventTablesOfUnknownCounts(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	lost, n := 0, 0
	for i := range trials {
		trials[i].Metrics = map[string]float64{"events_counted": 100, "events_expected": 100}
		if trials[i].Arm == "candidate" && trials[i].Validity.Valid {
			if n++; n%2 == 0 {
				trials[i].Metrics["events_lost"] = 10
				lost++
			}
		}
	}
	page, _ := htmlOf(t, run, trials, report.HTMLOptions{NoCharts: true})
	_, table, _ := strings.Cut(page, `aria-label="Events by arm"`)
	table, _, _ = strings.Cut(table, "</table>")
	text := prose("<p " + table)
	want := fmt.Sprintf(" %d (in %d of %d trials) %d of %d ", 10*lost, lost, n, lost, lost)
	if !strings.Contains(text, want) || strings.Contains(text, "%") {
		t.Errorf("no %q, or a part, in\n%s", want, text)
	}
}

func TestHTMLEventTables(t *testing.T) {
	run, trials := analysistest.Quickstart(plain)
	run.Metrics = append(run.Metrics, measured.Definitions()...)
	ns := int64(40_000)
	for i := range trials {
		m := map[string]float64{"events_generated": 1000, "events_counted": 1000}
		if trials[i].Arm == "candidate" {
			m["events_expected"], m["events_delivered"], m["events_lost"], m["events_late"] = 2000, 1995, 5, 2
			trials[i].Nodes = []record.NodeTrial{{Name: "node-1", ClockError: &ns,
				Trial: &record.Trial{Metrics: map[string]float64{"events_generated": 1000, "events_delivered": 995,
					"events_lost": 5, "cpu_seconds_per_kiloevent": 2e-3}}}, {Name: "node-2", Failed: "it died"}}
		}
		trials[i].Metrics = m
	}
	page, _ := htmlOf(t, run, trials, report.HTMLOptions{NoCharts: true})
	row := func(label string) string {
		_, table, _ := strings.Cut(page, `aria-label="`+label+`"`)
		table, _, _ = strings.Cut(table, "</table>")
		return prose("<p " + table)
	}
	n := 0
	for _, x := range trials {
		if x.Arm == "candidate" && x.Validity.Valid {
			n++
		}
	}
	for label, wants := range map[string][]string{
		"Events by arm": {fmt.Sprintf("direct %d ", n), fmt.Sprintf("candidate %d %d,000 %d,000 ", n, n, n),
			fmt.Sprintf(" %d (0.250 %%) %d of %d %d -", 5*n, n, n, 2*n)},
		"Events by node": {fmt.Sprintf("node-1 candidate %d 0 %d,000 ", n, n), " 2.00 ms 40.0 us",
			fmt.Sprintf("node-2 candidate 0 %d - - - - - - - - -", n)},
	} {
		for _, want := range wants {
			if !strings.Contains(row(label), want) {
				t.Errorf("no %q in\n%s", want, row(label))
			}
		}
	}
}
