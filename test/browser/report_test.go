package browser_test

import (
	"bytes"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	_ "tare/internal/all" // registers the answers of guests
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
	"tare/test/browser"
)

// chromium serves all tests of this package. It is nil if this machine has none.
var chromium *browser.Chromium

func TestMain(m *testing.M) {
	var err error
	if chromium, err = browser.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "starting chromium:", err)
		os.Exit(1)
	}
	code := m.Run()
	if chromium != nil {
		if err := chromium.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "removing what chromium left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

var truth = analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6, MapBytes: 1.2e6}

// page makes a run, alters it, and writes its report, whose path it returns.
func page(t *testing.T, truth analysistest.Truth, alter func(*record.Run, []record.Trial)) string {
	t.Helper()
	browser.NeedCharts(t)
	run, trials := analysistest.Quickstart(truth)
	for i := range trials {
		furnish(&trials[i])
	}
	if alter != nil {
		alter(&run, trials)
	}
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := report.HTML(&b, s, run, trials, report.HTMLOptions{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// furnish gives a trial a CPU budget and control groups as a real trial has them.
func furnish(t *record.Trial) {
	f := func(v float64) *float64 { return &v }
	n := func(v uint64) *uint64 { return &v }
	group := func(role string, cpu float64, anon uint64) ledger.Cgroup {
		m := &ledger.Memory{Anon: n(anon), Shmem: n(0), Kernel: n(800_000), File: n(400_000), Current: n(anon + 1_200_000),
			InactiveFile: n(0)}
		m.Derive()
		return ledger.Cgroup{Path: "/trial/" + role, Role: role, CPUSeconds: f(cpu), BPFSeconds: f(0), BPFInsideSeconds: f(0),
			Memory: m}
	}
	t.Ledger.Cgroups = []ledger.Cgroup{group("app", 0.7, 6e6), group("load", 0.5, 4e6)}
	bpf := 0.0
	if t.Arm == "candidate" {
		bpf = 0.012
		t.Subject = []byte(`{"programs":[{"id":7}]}`)
		t.Ledger.Programs = []ledger.Program{{ID: 7, RunSeconds: &bpf}}
		t.Ledger.Cgroups = append(t.Ledger.Cgroups, group("subject", 0.001, 5e6))
	}
	t.Ledger.CPU.Lines = []ledger.CPULine{
		{Name: ledger.LineGroups, Seconds: 1.3 - bpf}, {Name: ledger.LineRoot, Seconds: 0.05},
		{Name: ledger.LineKernel, Seconds: 0.04},
		{Name: ledger.LineBPF, Seconds: bpf}, {Name: ledger.LineInterrupts, Seconds: 0.05},
		{Name: ledger.LineSelf, Seconds: 0.04},
	}
}

// quiet fails the test if the page logged an error or requested anything but itself.
func quiet(t *testing.T, b *browser.Browser, path string) {
	t.Helper()
	errors, requests := b.Said()
	if len(errors) > 0 {
		t.Errorf("the page logged %d errors: %s", len(errors), errors[0])
	}
	asked := false
	for _, r := range requests {
		asked = asked || r == "file://"+path
		if r != "file://"+path {
			t.Errorf("the page asked for %s", r)
		}
	}
	if !asked {
		t.Error("no request was seen, not even the page itself: the test is blind")
	}
}

// charts returns the titles of the figures that show something.
func charts(b *browser.Browser) (figures []string) {
	b.Eval(`[...document.querySelectorAll("figure[data-chart]")].filter(f => !f.hidden && [...f.querySelectorAll("svg[data-chart]")].some(s => s.getBoundingClientRect().width > 100)).map(f => f.dataset.chart)`, &figures)
	return figures
}

// TestPlainPage tests the page of an ordinary run: its content, its controls, and how it looks on a dark screen, on
// paper and on a telephone. All these tests share one page, because opening a page takes longer than most of them.
func TestPlainPage(t *testing.T) {
	path := page(t, truth, nil)
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	for _, part := range []struct {
		name  string
		check func(t *testing.T, b *browser.Browser)
	}{
		{"charts", chartsAreShown}, {"keyboard", keyboard}, {"hover", hoverShowsExactValues},
		{"dark and print", darkAndPrint},
	} {
		t.Run(part.name, func(t *testing.T) {
			b.For(t)
			part.check(t, b)
		})
	}
	b.For(t)
	small(t, b, path)
	quiet(t, b, path)
}

// chartsAreShown checks that there are all charts for which the run has data, and that changes of a few per cent have
// an axis in per cent.
func chartsAreShown(t *testing.T, b *browser.Browser) {
	want := []string{"differences", "values", "latency", "latency-difference", "cpu", "memory", "trials"}
	showsCharts(t, b, want)
	changes(t, b, "change from direct (%)")
	keep(t, b, "plain.png")
}

// showsCharts checks which figures there are, and that the page is no wider than its window of 1280 pixels.
func showsCharts(t *testing.T, b *browser.Browser, want []string) {
	t.Helper()
	if got := charts(b); !slices.Equal(got, want) {
		t.Errorf("figures %q, want %q", got, want)
	}
	var wide int
	b.Eval(`document.documentElement.scrollWidth`, &wide)
	if wide > 1280 {
		t.Errorf("the page is %d pixels wide in a window of 1280", wide)
	}
}

// TestChartsAreShown: the page has exactly the charts for which a run has data. TestPlainPage and TestGaps test other
// charts.
func TestChartsAreShown(t *testing.T) {
	few := truth
	few.Blocks = 3
	for _, c := range []struct {
		name  string
		truth analysistest.Truth
		alter func(*record.Run, []record.Trial)
		want  []string
	}{
		{"without intervals", few, nil, []string{"values", "latency", "latency-difference", "cpu", "memory", "trials"}},
		{"every trial failed", truth, func(_ *record.Run, trials []record.Trial) {
			for i := range trials {
				trials[i] = record.Trial{Schema: record.TrialSchema, PlannedTrial: trials[i].PlannedTrial,
					Started: trials[i].Started, Validity: record.Validity{Failed: "it fell over"}}
			}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := page(t, c.truth, c.alter)
			b := chromium.Page(t, 1280, 900)
			b.Open(path)
			showsCharts(t, b, c.want)
			keep(t, b, strings.ReplaceAll(c.name, " ", "-")+".png")
			quiet(t, b, path)
		})
	}
}

// tip is the text with which a chart shows one value, as it appears on the screen.
const tip = `[...document.querySelectorAll("[aria-label='tip'] text")].map(e => [...e.querySelectorAll("tspan")].map(s => s.textContent).join("\n") || e.textContent).join("|")`

func hoverShowsExactValues(t *testing.T, b *browser.Browser) {
	var want string // the difference as the table shows it
	b.Eval(`(() => { const d = JSON.parse(document.getElementById("data").textContent);
		const m = d.metrics.findIndex(m => m.name === "latency_p50_seconds");
		return d.estimates.find(e => e.metric === m && d.arms[e.arm].name === "candidate").text })()`, &want)
	var at struct{ X, Y float64 }
	b.Eval(`(() => { const s = document.querySelector("figure[data-chart='values'] svg[data-chart='latency p50 by arm']");
		s.scrollIntoView({block: "center", behavior: "instant"});
		const marks = [...s.querySelectorAll("[aria-label='dot'] path, [aria-label='dot'] circle")];
		const r = marks[marks.length - 1].getBoundingClientRect();
		return {x: r.left + r.width / 2, y: r.top + r.height / 2} })()`, &at)
	b.Frame()
	var before, after string
	b.Eval(tip, &before)
	b.Move(at.X-4, at.Y-1)
	b.Move(at.X, at.Y)
	b.Eval(tip, &after)
	keep(t, b, "hover.png")
	if want == "" || strings.Contains(before, want) || !strings.Contains(after, "candidate: "+want) {
		t.Errorf("hovering shows %q, before it %q; want candidate: %s", after, before, want)
	}
}

func keyboard(t *testing.T, b *browser.Browser) {
	focused := `document.activeElement?.dataset?.chart ?? ""`
	var chart string
	for range 60 { // presses Tab, as a person does, until a chart has the focus
		b.Press(kb.Tab)
		if b.Eval(focused, &chart); chart != "" {
			break
		}
	}
	if chart != "Change from the baseline in per cent" {
		t.Fatalf("the first chart that Tab reaches is %q", chart)
	}
	var outline string
	b.Eval(`getComputedStyle(document.activeElement).outlineStyle`, &outline)
	if outline == "none" {
		t.Error("a chart with the focus does not show it")
	}
	seen := map[string]bool{}
	for range 3 {
		var shown, live string
		b.Eval(tip, &shown)
		b.Eval(`document.getElementById("live").textContent`, &live)
		if !strings.Contains(shown, "candidate") || !strings.Contains(live, "candidate") {
			t.Errorf("the chart shows %q and says %q", shown, live)
		}
		seen[shown] = true
		b.Press(kb.ArrowDown)
	}
	if len(seen) != 3 {
		t.Errorf("three values by arrow key are %d: %v", len(seen), seen)
	}
	b.Press(kb.Escape)
	var shown string
	if b.Eval(tip, &shown); shown != "" {
		t.Errorf("after Escape the chart still shows %q", shown)
	}
	var without []string
	b.Eval(`[...document.querySelectorAll("svg[data-chart]")].filter(s => s.tabIndex !== 0 || !s.getAttribute("aria-label")).map(s => s.dataset.chart)`, &without)
	if len(without) > 0 {
		t.Errorf("charts that the keyboard cannot reach or that have no name: %q", without)
	}
}

func darkAndPrint(t *testing.T, b *browser.Browser) {
	background := `getComputedStyle(document.body).backgroundColor`
	var light, dark, ink string
	b.Eval(background, &light)
	b.Media("screen", "dark")
	b.Eval(background, &dark)
	b.Eval(`getComputedStyle(document.querySelector("figure svg[data-chart]")).color`, &ink)
	if light == dark || ink == dark {
		t.Errorf("background %s by day and %s by night, ink of charts %s", light, dark, ink)
	}
	keep(t, b, "dark.png")

	b.Media("print", "dark") // paper is white, whatever the colour scheme
	var paper, nav string
	b.Eval(background, &paper)
	b.Eval(`getComputedStyle(document.querySelector("nav")).display`, &nav)
	if paper != "rgb(255, 255, 255)" || nav != "none" {
		t.Errorf("on paper the background is %s and the navigation is shown as %s", paper, nav)
	}
	if os.Getenv("TARE_SHOTS") != "" {
		b.Resize(700, 1000, false)
		b.Eval(`dispatchEvent(new Event("beforeprint"))`, nil)
		keep(t, b, "print.png")
		b.Eval(`dispatchEvent(new Event("afterprint"))`, nil)
		b.Resize(1280, 900, false)
	}

	b.Media("", "light")
	pdf := b.PDF()
	if !bytes.HasPrefix(pdf, []byte("%PDF-")) || bytes.Count(pdf, []byte("/Type /Page\n")) < 2 && len(pdf) < 50_000 {
		t.Errorf("printing gives %d bytes", len(pdf))
	}
	keepFile(t, "print.pdf", pdf)
	var open bool
	b.Eval(`(() => { dispatchEvent(new Event("beforeprint")); const open = [...document.querySelectorAll("details:not(.long)")].every(d => d.open); dispatchEvent(new Event("afterprint")); return open && ![...document.querySelectorAll("details")].some(d => d.open) })()`, &open)
	if !open {
		t.Error("tables are not unfolded for paper, or stay so after it")
	}

}

// small opens the page on a telephone. Since the run is valid, the page must not begin with a state such as "invalid".
func small(t *testing.T, b *browser.Browser, path string) {
	t.Helper()
	b.Resize(390, 800, true)
	b.Open(path)
	var wide int
	b.Eval(`document.documentElement.scrollWidth`, &wide)
	if wide > 390 {
		t.Errorf("the page is %d pixels wide on a telephone of 390", wide)
	}
	if first := firstLine(b); strings.Contains(first, "valid") || strings.Contains(first, "partial") {
		t.Errorf("the page begins with %q", first)
	}
	keep(t, b, "small.png")
}

// TestHostileNames: a name in a spec can come from anywhere, so no name may become markup or run as a script.
func TestHostileNames(t *testing.T) {
	evil := `</script><script>window.ran=1</script><!--<script>"'><img src=x onerror="window.ran=2"><style>body{display:none}</style>`
	path := page(t, truth, func(run *record.Run, trials []record.Trial) {
		run.Experiment, run.Question, run.Environment.Hostname, run.Command = evil, evil+"?", evil, []string{"tare", evil}
		run.Environment.Subjects = map[string]string{evil: evil}
		run.Spec = []byte(`{"name":"</script><script>window.ran=3</script>","gates":{"</dl><script>window.ran=4</script>":"<b>"}}`)
		for i := range trials {
			if trials[i].Arm == "candidate" {
				trials[i].Arm = evil
			}
			trials[i].Factors = map[string]string{evil: evil}
			trials[i].Metrics["<img src=x onerror=window.ran=5>_seconds"] = float64(i)
		}
		trials[5].Validity = record.Validity{Failed: evil}
	})
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	var ran, scripts, images int
	b.Eval(`window.ran ?? 0`, &ran)
	b.Eval(`document.scripts.length`, &scripts)
	b.Eval(`document.images.length`, &images)
	if ran != 0 || scripts != 2 || images != 0 {
		t.Errorf("ran %d; %d scripts, want the data and the charts; %d images", ran, scripts, images)
	}
	if len(charts(b)) < 5 {
		t.Errorf("of the charts only %q are left", charts(b))
	}
	quiet(t, b, path)
}

// TestPolicyHolds: the page's Content-Security-Policy stops a script and an image that got into the markup.
func TestPolicyHolds(t *testing.T) {
	path := page(t, truth, nil)
	html, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	html = bytes.Replace(html, []byte("</main>"),
		[]byte(`<script>window.ran=1</script><img src="http://127.0.0.1:9/x.png"></main>`), 1)
	if err := os.WriteFile(path, html, 0o644); err != nil {
		t.Fatal(err)
	}
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	var ran int
	if b.Eval(`window.ran ?? 0`, &ran); ran != 0 {
		t.Error("a foreign script ran")
	}
	if errors, _ := b.Said(); len(errors) < 2 {
		t.Errorf("the browser refused %d things, want a script and an image: %q", len(errors), errors)
	}
}

// keep saves a screenshot in the directory TARE_SHOTS, for people to look at. Without that variable it takes none,
// because a long page takes seconds without a graphics processor.
func keep(t *testing.T, b *browser.Browser, name string) {
	t.Helper()
	if os.Getenv("TARE_SHOTS") == "" {
		return
	}
	data := b.Screenshot()
	if im, err := png.Decode(bytes.NewReader(data)); err != nil || im.Bounds().Dy() < 200 {
		t.Errorf("the screenshot %s is no picture of a page: %v", name, err)
	}
	keepFile(t, name, data)
}

func keepFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if dir := os.Getenv("TARE_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Error(err)
		}
	}
}

// ask returns a function that turns the made run into one of another experiment: it has the factor of the given name at
// the levels of the made rates, and further metrics for each trial.
func ask(experiment, factor string, metrics func(t *record.Trial, level float64)) func(*record.Run, []record.Trial) {
	return func(run *record.Run, trials []record.Trial) {
		run.Experiment = experiment
		run.Metrics = append(run.Metrics, measured.Definitions()...)
		for i := range run.Plan {
			run.Plan[i].Factors = map[string]string{factor: run.Plan[i].Factors["rate"]}
		}
		for i := range trials {
			t := &trials[i]
			var level float64
			fmt.Sscan(t.Factors["rate"], &level)
			t.Factors = map[string]string{factor: t.Factors["rate"]}
			metrics(t, level)
		}
	}
}

// TestAnswersAreDrawn: the chart that answers an experiment's question is drawn before all others. What the experiment
// measured, not its name, decides which chart that is.
func TestAnswersAreDrawn(t *testing.T) {
	two, three := truth, truth
	two.Rates, three.Rates = []string{"1", "4"}, []string{"1", "1000", "10000"}
	for _, c := range []struct {
		name, figure string
		truth        analysistest.Truth
		alter        func(*record.Run, []record.Trial)
		plots        int
		marks        string // selects the marks to count
		count        int
		says         []string // in the figure, and what a chart says to a screen reader
	}{
		{"a CPU limit", "limits", two, ask("mine", "client.count", func(t *record.Trial, _ float64) {
			bpf := 0.0
			if t.Arm == "candidate" {
				bpf = 0.2
				t.Counts = map[string]record.Count{"bpf_limited_task_share": {In: 60, Of: 100},
					"bpf_limited_softirq_share": {In: 20, Of: 100}, "bpf_limited_inside_share": {In: 80, Of: 100}}
			}
			t.Metrics["limited_cpus"], t.Metrics["limit_cpus"] = 0.26, 0.25
			t.Metrics["limited_bpf_cpus"], t.Metrics["limited_throttled_share"] = bpf, 1
		}), 2, "[aria-label='bar'] rect", 2 * (1 + 3), []string{"limit 0.25 CPU", "throttled 100 %", "eBPF in softirq"}},
		{"a limit without samples", "limits", two, ask("mine", "client.count", func(t *record.Trial, _ float64) {
			t.Metrics["limited_cpus"], t.Metrics["limit_cpus"] = 0.26, 0.25
		}), 2, "[aria-label='bar'] rect", 2 * 2, []string{"not split: the samples do not say"}},
		{"up and down", "stairs", three, ask("mine", "*.services", func(t *record.Trial, level float64) {
			bytes := 0.0
			if t.Arm == "candidate" {
				bytes = 1e4 + 200*level
			}
			t.Metrics["map_before_bytes"], t.Metrics["map_bytes"], t.Metrics["map_after_bytes"] = bytes, bytes, bytes/2
			if level != 1000 { // one level has no measurement
				t.Metrics["memory_kernel_bytes"] = bytes
			}
		}), 2, "[aria-label='dot'] path, [aria-label='dot'] circle", 9 + 2,
			[]string{"10,000", "after removal", "services (logarithmic)"}},
		{"waits", "waits", three, ask("mine", "steps", func(t *record.Trial, level float64) {
			wait := 30e-6
			if t.Arm == "candidate" {
				wait = 1e-5 * level
			}
			t.Metrics["sched_delay_p50_seconds"], t.Metrics["sched_delay_p99_seconds"] = wait, 2*wait
			t.Metrics["sched_delay_max_seconds"] = 20 * wait
		}), 3, "[aria-label='dot'] path, [aria-label='dot'] circle", 6 + 6 + 2*3*8,
			[]string{"usable up to 1 s", "longest of each trial", "10,000"}},
		{"events", "events", two, ask("mine", "rate", func(t *record.Trial, level float64) {
			t.Metrics["events_generated"], t.Metrics["events_counted"] = 1000*level, 1000*level
			if t.Arm == "candidate" {
				t.Metrics["events_expected"], t.Metrics["events_lost"] = 1000*level, level
				t.Metrics["events_delivered"] = 1000*level - level
			}
		}), 4, "[aria-label='dot'] path, [aria-label='dot'] circle", 2 * (8 + 8 + 8),
			[]string{"candidate: delivered", "repetition", "Delivered less expected at rate 4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := page(t, c.truth, c.alter)
			b := chromium.Page(t, 1280, 900)
			b.Open(path)
			if got := charts(b); len(got) == 0 || got[0] != c.figure {
				t.Fatalf("figures %q, want %q first", got, c.figure)
			}
			figure := `document.querySelector("figure[data-chart='` + c.figure + `']")`
			var plots, marks int
			var text string
			b.Eval(figure+`.querySelectorAll("svg[data-chart]").length`, &plots)
			b.Eval(`[...`+figure+`.querySelectorAll("svg[data-chart]")].flatMap(s => [...s.querySelectorAll("`+c.marks+
				`")]).length`, &marks)
			b.Eval(figure+`.textContent`, &text)
			if plots != c.plots {
				t.Errorf("%d plots, want %d", plots, c.plots)
			}
			if marks != c.count {
				t.Errorf("%d marks, want %d: no value may be missing, and none be made up", marks, c.count)
			}
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("the figure does not say %q: %s", want, text)
				}
			}
			// The keyboard reaches each value, in one tip at a time.
			b.Eval(figure+`.querySelector("svg[data-chart]").focus()`, nil)
			seen := map[string]bool{}
			for range 3 {
				b.Press(kb.ArrowRight)
				var shown string
				if b.Eval(tip, &shown); shown == "" || strings.Contains(shown, "|") {
					t.Errorf("the keyboard shows %q", shown)
				}
				seen[shown] = true
			}
			if len(seen) < 2 {
				t.Errorf("three steps show %v", seen)
			}
			keep(t, b, strings.ReplaceAll(c.name, " ", "-")+".png")
			// Paper does not scroll: even with all tables unfolded, nothing may be wider than the page.
			b.Media("print", "light")
			b.Resize(700, 1000, false)
			b.Eval(`dispatchEvent(new Event("beforeprint"))`, nil)
			var wide int
			if b.Eval(`document.documentElement.scrollWidth`, &wide); wide > 700 {
				t.Errorf("on paper of 700 pixels the page is %d wide", wide)
			}
			quiet(t, b, path)
		})
	}
}

// TestGaps: in a sweep, a level without a value is a gap in the line of its arm, because nobody measured what a line
// through it would show.
func TestGaps(t *testing.T) {
	sweep := truth
	sweep.Rates = []string{"100", "1000", "2000", "10000"}
	path := page(t, sweep, func(_ *record.Run, trials []record.Trial) {
		for i := range trials {
			if trials[i].Arm == "candidate" && trials[i].Factors["rate"] == "1000" {
				delete(trials[i].Metrics, "throughput_per_second")
			}
		}
	})
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	showsCharts(t, b, []string{"differences", "latency", "latency-difference", "sweep", "cpu", "memory", "trials"})
	keep(t, b, "sweep.png")
	var lines []string
	b.Eval(`[...document.querySelectorAll("svg[data-chart='throughput per second against rate'] [aria-label='line'] path")].map(p => p.getAttribute("d"))`, &lines)
	whole, broken := 0, 0
	for _, d := range lines {
		switch strings.Count(d, "M") {
		case 1:
			whole++
		case 2:
			broken++
		}
	}
	if whole != 1 || broken != 1 {
		t.Errorf("lines %q: want that of direct whole and that of candidate with a gap", lines)
	}
	quiet(t, b, path)
}

// TestFacetsAndSaving: in a run with two factors, each level of the second one has its own plot. The plots are side by
// side and share an axis, and each arm has the dashes of its legend. A chart is saved as a file that has its title, its
// legend and no reference to the page.
func TestFacetsAndSaving(t *testing.T) {
	sweep := truth
	sweep.Rates = []string{"500", "1000", "2000", "4000", "8000", "16000"}
	at := map[string]map[string]string{
		"500": {"rate": "500", "size": "1"}, "1000": {"rate": "1000", "size": "1"}, "2000": {"rate": "2000", "size": "1"},
		"4000": {"rate": "500", "size": "90"}, "8000": {"rate": "1000", "size": "90"},
		"16000": {"rate": "2000", "size": "90"},
	}
	path := page(t, sweep, func(run *record.Run, trials []record.Trial) {
		for i := range run.Plan {
			run.Plan[i].Factors = at[run.Plan[i].Factors["rate"]]
		}
		for i := range trials {
			trials[i].Factors = at[trials[i].Factors["rate"]]
			trials[i].Metrics["throughput_per_second"] *= float64(len(trials[i].Factors["size"]))
		}
	})
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	var names []string
	b.Eval(`[...document.querySelectorAll("figure[data-chart='sweep'] svg[data-chart*='throughput']")].map(s => s.dataset.chart)`, &names)
	want := []string{"size 1: throughput per second against rate", "size 90: throughput per second against rate"}
	if !slices.Equal(names, want) {
		t.Errorf("the plots are %q, want %q", names, want)
	}
	ticks := `[...document.querySelectorAll("svg[data-chart^='size %s: throughput'] [aria-label='y-axis tick label'] text")].map(t => t.textContent)`
	var left, right []string
	b.Eval(fmt.Sprintf(ticks, "1"), &left)
	b.Eval(fmt.Sprintf(ticks, "90"), &right)
	if len(left) == 0 || !slices.Equal(left, right) {
		t.Errorf("the axes are %q and %q", left, right)
	}
	var saved string
	b.Eval(`(async () => {
		const made = URL.createObjectURL;
		let blob;
		URL.createObjectURL = (b) => { blob = b; return made.call(URL, b); };
		document.querySelector("figure[data-chart='sweep'] .plot .save").click();
		URL.createObjectURL = made;
		return await blob.text();
	})()`, &saved)
	if !strings.HasPrefix(saved, "<svg") || !strings.Contains(saved, ">candidate</text>") ||
		!strings.Contains(saved, "size 1") || strings.Contains(saved, "var(--") || strings.Contains(saved, "currentColor") {
		t.Errorf("it is saved as %.2000s", saved)
	}
	quiet(t, b, path)
}

// TestChangesOfAllSizes: a change by a factor of hundreds and changes of a few per cent share one axis.
func TestChangesOfAllSizes(t *testing.T) {
	path := page(t, truth, func(_ *record.Run, trials []record.Trial) {
		for i := range trials {
			trials[i].Metrics["flush_p50_seconds"] = 1e-3 * (1 + 0.01*float64(i%5))
			if trials[i].Arm == "candidate" {
				trials[i].Metrics["flush_p50_seconds"] *= 300
			}
		}
	})
	b := chromium.Page(t, 1280, 900)
	b.Open(path)
	changes(t, b, "change from direct, logarithmic")
	quiet(t, b, path)
}

// changes checks the text of the axis of the chart of differences.
func changes(t *testing.T, b *browser.Browser, want string) {
	t.Helper()
	var text string
	b.Eval(`document.querySelector("figure[data-chart='differences']").textContent`, &text)
	if !strings.Contains(text, want) {
		t.Errorf("no %q in %s", want, text)
	}
}

// firstLine returns the first line of the page, in lower case.
func firstLine(b *browser.Browser) (first string) {
	b.Eval(`document.querySelector("main").innerText.trim().split("\n")[0].toLowerCase()`, &first)
	return first
}

// TestStateStandsFirst: if a run is invalid or partial, its page says so before anything else, on a small screen too.
func TestStateStandsFirst(t *testing.T) {
	for state, alter := range map[string]func(*record.Run, []record.Trial){
		"invalid": func(_ *record.Run, trials []record.Trial) {
			for i := range trials {
				if i%2 == 0 {
					trials[i].Validity = record.Validity{Reasons: []record.Reason{{Gate: "held", Message: "it was not held"}}}
				}
			}
		},
		"partial": func(run *record.Run, _ []record.Trial) {
			for range 3 {
				run.Plan = append(run.Plan, run.Plan[0])
			}
		},
	} {
		path := page(t, truth, alter)
		b := chromium.Page(t, 400, 800)
		b.Open(path)
		if first := firstLine(b); !strings.Contains(first, state) {
			t.Errorf("%s: the page begins with %q", state, first)
		}
		if state == "invalid" {
			var stars int
			b.Eval(`[...document.querySelectorAll("figure[data-chart='trials'] .legend li")].filter(l => l.textContent.endsWith("left out")).length`, &stars)
			if stars != 1 {
				t.Error("trials that are left out are in no legend")
			}
		}
		var wide int
		if b.Eval(`document.documentElement.scrollWidth`, &wide); wide > 400 {
			t.Errorf("%s: the page is %d pixels wide in a window of 400", state, wide)
		}
		quiet(t, b, path)
	}
}
