package agent

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"tare/internal/scale/ledger"
	"tare/internal/scale/live"
	"tare/internal/scale/meter"
	"tare/test/lines"
)

var update = flag.Bool("update", false, "write docs/agent-metrics.md anew")

// everything returns a view from which every metric gets a series.
func everything() *view {
	totals := live.NewTotals(live.Options{Most: 3, Duty: live.Duty{On: time.Second, Every: 2 * time.Second}})
	start := time.Unix(1e9, 0)
	const ticks = 12
	for tick := range ticks {
		counted := tick%2 == 0
		l := &ledger.Ledger{Host: ledger.Host{CPUs: 2, Sampler: "cpu-clock"},
			Window: ledger.Window{Start: start, End: start.Add(time.Second)}}
		l.CPU = ledger.Budget(ledger.Usage{Capacity: 2, Idle: 1, Groups: 0.7, Root: 0.1, Self: 0.01, Steal: 0.05,
			NoBPF: !counted})
		l.CPU.Part = new(0.8)
		l.Noise = &ledger.Noise{LongestSeconds: 0.1}
		l.Warnings = []ledger.Warning{{Code: "a"}, {Code: "a"}, {Code: "b"}}
		l.Self = ledger.Self{CPUSeconds: 0.01, BPFSeconds: new(0.1), StatsSeconds: new(0.1), WitnessSeconds: new(0.1),
			BPFBytes: new(uint64(1)), Samples: 3}
		for i := range 8 {
			path := fmt.Sprintf("/%d\n\xff", i)
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: path, CPUSeconds: new(0.1 * float64(i)),
				Memory: &ledger.Memory{Hard: new(int64(1)), Soft: new(int64(2)), WorkingSet: new(uint64(3))}})
			l.Programs = append(l.Programs, ledger.Program{ID: uint32(i), Tag: "t", Name: "p", Type: "xdp",
				MemoryBytes: new(uint64(4)),
				Seen:        []ledger.Seen{{Cgroup: &path, Samples: 20}, {Samples: 20}}})
			if counted {
				last := &l.Programs[i]
				last.RunSeconds, last.RunCount = new(float64(i)), new(uint64(5))
			}
			l.Maps = append(l.Maps, ledger.Map{ID: uint32(i), Name: "m", Type: "hash", Bytes: new(uint64(i))})
			l.Components = append(l.Components, ledger.Component{Charged: ledger.Charged{Component: fmt.Sprint(i)},
				CPUSeconds: new(0.1), BPFSeconds: new(0.1), MemoryHardBytes: new(int64(1)), MapBytes: new(int64(1))})
		}
		if tick == ticks-1 {
			l.Programs = l.Programs[1:]
		}
		totals.Add(l)
	}
	return &view{Totals: totals, started: start, parts: map[string]meter.Part{"x": {Name: "x", Took: 1}}}
}

func never(string, uint64) bool { return false }

// TestFamilies: each metric is declared correctly, its families are sorted by name, and Prometheus' own parser and
// linter find nothing wrong.
func TestFamilies(t *testing.T) {
	var names []string
	var text bytes.Buffer
	err := new(builder).each(everything(), never, func(f *dto.MetricFamily, _ uint64) error {
		names = append(names, f.GetName())
		if model.EscapeMetricFamily(f, model.UnderscoreEscaping).String() != f.String() {
			t.Errorf("%s or its labels need escaping, which answers leave out", f.GetName())
		}
		seen := map[string]bool{}
		for _, m := range f.Metric {
			if s := m.String(); seen[fmt.Sprint(m.Label)] {
				t.Errorf("%s has a series twice: %s", f.GetName(), s)
			}
			seen[fmt.Sprint(m.Label)] = true
		}
		_, err := expfmt.MetricFamilyToText(&text, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(names) {
		t.Error("the families are not sorted")
	}
	for _, m := range metrics {
		if !slices.Contains(names, m.name) {
			t.Errorf("%s has no series", m.name)
		}
		if strings.HasSuffix(m.name, "_total") != (m.kind == counter) || m.help == "" || !strings.HasSuffix(m.help, ".") &&
			!strings.Contains(m.help, ";") && !strings.Contains(m.help, "/v1/ledger") {
			t.Errorf("%s is not well declared", m.name)
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(bytes.NewReader(text.Bytes())); err != nil {
		t.Error(err)
	}
	problems, err := promlint.New(&text).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestComponentMemory: the memory of the biggest components has a series each, and that of all others shares one.
func TestComponentMemory(t *testing.T) {
	l := &ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 1, Idle: 1})}
	for i, bytes := range []*int64{new(int64(10)), new(int64(20)), new(int64(40)), new(int64(30)), nil} {
		l.Components = append(l.Components, ledger.Component{Charged: ledger.Charged{Component: fmt.Sprint("c", i)},
			MemoryHardBytes: bytes, MapBytes: new(int64)})
	}
	const metric = "tare_component_memory_hard_bytes"
	for most, want := range map[int]string{
		2: `tare_agent_series_omitted{metric="` + metric + `"} 2
` + metric + `{charge="unknown",component="c2"} 40
` + metric + `{charge="unknown",component="c3"} 30
` + metric + `{component="(other)"} 30
`,
		0: `tare_agent_series_omitted{metric="` + metric + `"} 0
` + metric + `{charge="unknown",component="c2"} 40
` + metric + `{charge="unknown",component="c3"} 30
` + metric + `{charge="unknown",component="c1"} 20
` + metric + `{charge="unknown",component="c0"} 10
`,
	} {
		totals := live.NewTotals(live.Options{Most: most})
		totals.Add(l)
		var text bytes.Buffer
		err := new(builder).each(&view{Totals: totals}, never, func(f *dto.MetricFamily, _ uint64) error {
			_, err := expfmt.MetricFamilyToText(&text, f)
			return err
		})
		got := ""
		for line := range strings.Lines(text.String()) {
			if strings.Contains(line, metric) && !strings.HasPrefix(line, "#") {
				got += line
			}
		}
		if err != nil || got != want {
			t.Errorf("at most %d series: %v\n%s\nwant\n%s", most, err, got, want)
		}
	}
}

// TestBuilderIsReused: a builder that is used again keeps nothing of the earlier metrics, whether they had more or
// fewer series.
func TestBuilderIsReused(t *testing.T) {
	text := func(b *builder, v *view) string {
		var lines []string
		err := b.each(v, never, func(f *dto.MetricFamily, _ uint64) error {
			for _, m := range f.Metric { // all of the message: the text format omits what is not of the metric's type
				lines = append(lines, fmt.Sprintln(f.GetName(), f.GetHelp(), f.GetType(), m))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(lines) // series come in any order
		return strings.Join(lines, "")
	}
	large, small := everything(), everything()
	small.Totals = live.NewTotals(live.Options{})
	small.Add(&ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 1, Idle: 1})})
	wants := map[*view]string{large: text(&builder{}, large), small: text(&builder{}, small)}
	var b builder
	for i, v := range []*view{large, large, small, small, large, small, large} {
		if got := text(&b, v); !sameButSelf(got, wants[v]) {
			t.Errorf("the same metrics as before, in step %d:\n%s\nwant\n%s", i, got, wants[v])
		}
	}
}

// sameButSelf compares texts without the memory of this process.
func sameButSelf(a, b string) bool {
	without := func(s string) string {
		kept := slices.DeleteFunc(slices.Collect(strings.Lines(s)), func(line string) bool {
			return strings.HasPrefix(line, "tare_agent_resident_memory_bytes ")
		})
		return strings.Join(kept, "")
	}
	return without(a) == without(b)
}

var oddTexts = []string{"a", "/kubepods/x", "\"", "\"a\"", "a\nb", "\xff", "a\xffb", "é", "\u202e", "\\", `\xff`, `"\xff"`,
	"(other)",
	strings.Repeat("a", 600), strings.Repeat("a", 599) + "b", strings.Repeat("\xff", 300), strings.Repeat("\xff", 255),
	strings.Repeat("é", 400), strings.Repeat("é", 222) + "x", strings.Repeat("a", 444), strings.Repeat("a", 445),
	"\x00", "\u00a0"}

// checkLabel checks that the labels of two texts are bounded and valid, and that different texts have different labels,
// even if one text is the label of another.
func checkLabel(t *testing.T, a, b string) {
	t.Helper()
	for _, s := range []string{a, b} {
		if got := label(s); len(got) > maxLabel || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\x00") || got == "" {
			t.Errorf("label(%q) is %q, of %d bytes", s, got, len(got))
		}
		if of := label(label(s)); of == label(s) && label(s) != s {
			t.Errorf("%q and its own label have the same label", s)
		}
	}
	if a != b && label(a) == label(b) {
		t.Errorf("%q and %q have the same label", a, b)
	}
}

func TestLabel(t *testing.T) {
	for _, a := range oddTexts {
		for _, b := range oddTexts {
			checkLabel(t, a, b)
		}
	}
	if got := label("/system.slice/ssh.service"); got != "/system.slice/ssh.service" {
		t.Errorf("a plain name became %q", got)
	}
}

func FuzzLabel(f *testing.F) {
	for i, s := range oddTexts {
		f.Add(s, oddTexts[len(oddTexts)-1-i])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if a != "" && b != "" { // an empty label is left out
			checkLabel(t, a, b)
		}
	})
}

// TestMetricsPage checks that docs/agent-metrics.md is what metricsPage makes of the declarations.
func TestMetricsPage(t *testing.T) {
	name := filepath.Join("..", "..", "docs", "agent-metrics.md")
	want := metricsPage()
	if *update {
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, want) {
		t.Error("docs/agent-metrics.md is not current: go test ./internal/agent -run TestMetricsPage -update")
	}
	for _, m := range metrics { // rules for names that the page states
		if strings.HasSuffix(m.name, "_total") != (m.kind == counter) {
			t.Errorf("%s: names of counters, and only these, end in _total", m.name)
		}
	}
}

func metricsPage() []byte {
	var b bytes.Buffer
	b.WriteString(`# Metrics of tare-agent

What ` + "`/metrics`" + ` has, with labels in parentheses ([what adds up](agent.md#what-adds-up)).

Names that end in _total are counters, which begin at 0 when the agent starts; all others are gauges. Units are seconds
and bytes. What cannot be read on a machine is absent, never 0; so is a label that does not apply. Series with "(other)"
stand for those without a series, because of ` + "`--max-series`" + `. What a series had when it ended is added to
` + "`tare_agent_series_gone_seconds_total`" + `: rates need no correction, and sums that must never fall have it as a
summand. In labels, bytes that cannot be printed are quoted as in Go, and long names end in a hash (SHA-256).

`)
	all := slices.SortedFunc(slices.Values(metrics), func(a, b metric) int { return strings.Compare(a.name, b.name) })
	for _, m := range all {
		entry := "- `" + m.name + "`"
		if len(m.labels) > 0 {
			entry += " (" + strings.Join(m.labels, ", ") + ")"
		}
		b.WriteString(lines.Wrap(entry+": "+m.help, "  "))
	}
	return b.Bytes()
}

// TestUncountedPrograms: without the kernel's run statistics, programs have no run time, which is not 0.
func TestUncountedPrograms(t *testing.T) {
	totals := live.NewTotals(live.Options{Most: 1})
	for range 3 {
		l := &ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 1, Idle: 1, NoBPF: true})}
		for i := range 3 {
			l.Programs = append(l.Programs, ledger.Program{ID: uint32(i), Tag: "t", MemoryBytes: new(uint64(4))})
		}
		totals.Add(l)
	}
	found := map[string]bool{}
	err := new(builder).each(&view{Totals: totals}, never, func(f *dto.MetricFamily, _ uint64) error {
		found[f.GetName()] = len(f.Metric) > 0
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !found["tare_bpf_program_memory_bytes"] {
		t.Error("the memory of programs has no series")
	}
	for _, name := range []string{"tare_bpf_program_run_seconds_total", "tare_bpf_program_runs_total",
		"tare_bpf_program_samples_total", "tare_bpf_pending_seconds", "tare_bpf_unsplit_seconds_total"} {
		if found[name] {
			t.Errorf("%s has a series, and nothing counted it", name)
		}
	}
}
