package report_test

import (
	"bytes"
	"encoding/csv"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"tare/internal/results/report"
	"tare/internal/scale/ledger"
)

// hostilePath is a group whose path has all that a label must escape.
const hostilePath = "/a\"b\\c,d={e}\n\x1b#\xff"

// exportedLedger returns a ledger with two groups at one path, a program whose run time is unknown, and hostile names.
func exportedLedger() *ledger.Ledger {
	at := func(v float64) *float64 { return &v }
	tare := ledger.Charged{Charge: ledger.ChargeTare, Component: "agent"}
	group := hostilePath
	l := &ledger.Ledger{
		CPU: ledger.Budget(ledger.Usage{Capacity: 20, Idle: 10, Groups: 9, Root: 1, Self: 1}),
		Cgroups: []ledger.Cgroup{
			{Path: "/agent", Charged: tare, CPUSeconds: at(2), Memory: &ledger.Memory{Hard: new(int64(1 << 40))}},
			{Path: "/agent", Charged: tare, CPUSeconds: at(0.5), Vanished: true},
			{Path: hostilePath, CPUSeconds: at(1.0 / 3)},
			{Path: "/unknown"},
			{Path: "/shop", CPUSeconds: at(0), Charged: ledger.Charged{Charge: ledger.ChargeWorkload, Workload: "shop"}},
		},
		Programs: []ledger.Program{
			{ID: 7, Name: "=cmd()", Charged: tare, RunCount: new(uint64(1 << 40)), RunSeconds: at(0.25), NsPerRun: at(1),
				Shares: []ledger.Share{
					{Cgroup: &group, Context: ledger.Softirq, Seconds: 0.2, Lo: 0.1, Hi: 0.3}, {Seconds: 0.05, Hi: 0.05},
				}},
			{ID: 8, Unloaded: true},
		},
		Maps: []ledger.Map{{ID: 9, Name: "ct", Bytes: new(uint64(4096))}, {ID: 10}},
	}
	l.Sandboxes = []ledger.Sandbox{{ID: "pod-1"}}
	l.Window.Seconds = 10
	l.Settle()
	l.AddComponents()
	l.Warn("samples-lost", "x")
	l.Warn("samples-lost", "y")
	return l
}

// TestLedgerOpenMetrics: Prometheus's own parser reads every known number of a ledger back as a gauge, under a name
// that ends in its unit, and no series twice.
func TestLedgerOpenMetrics(t *testing.T) {
	var b bytes.Buffer
	if err := report.LedgerOpenMetrics(&b, exportedLedger()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(b.String(), "\n# EOF\n") {
		t.Error("it does not end as OpenMetrics does")
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	value := func(name string, labels ...string) (v float64) {
		found := 0
		for _, m := range families[name].GetMetric() {
			if got := labelsOf(m); got == strings.Join(labels, " ") {
				v = m.GetGauge().GetValue()
				found++
			}
		}
		if found != 1 {
			t.Errorf("%s of %q is there %d times in\n%s", name, labels, found, b.String())
		}
		return v
	}
	hostile := `cgroup=/a"b\c,d={e}  # `
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"tare_window_seconds", nil, 10},
		{"tare_line_cpu_seconds", []string{"name=control groups"}, 9},
		{"tare_cgroup_cpu_seconds", []string{"cgroup=/agent", "charge=tare", "component=agent"}, 2.5},
		{"tare_cgroup_memory_hard_bytes", []string{"cgroup=/agent", "charge=tare", "component=agent"}, 1 << 40},
		{"tare_cgroup_cpu_seconds", []string{hostile}, 1.0 / 3},
		{"tare_program_runs", []string{"charge=tare", "component=agent", "id=7", "name==cmd()"}, 1 << 40},
		{"tare_share_seconds", []string{hostile, "charge=tare", "component=agent", "context=softirq", "id=7",
			"name==cmd()"}, 0.2},
		{"tare_component_cpu_seconds", []string{"charge=tare", "component=agent"}, 2.5},
		{"tare_component_cpu_seconds", nil, 6.5},
		{"tare_component_bpf_others_seconds", []string{"charge=tare", "component=agent"}, 0.2},
		{"tare_map_bytes", []string{"id=9", "name=ct"}, 4096},
		{"tare_warning_messages", []string{"name=samples-lost"}, 2},
	} {
		if got := value(c.name, c.labels...); got != c.want {
			t.Errorf("%s of %q is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	for name, f := range families {
		if f.GetType() != dto.MetricType_GAUGE || f.GetHelp() == "" {
			t.Errorf("%s is a %s with the help %q", name, f.GetType(), f.GetHelp())
		}
		seen := map[string]bool{}
		for _, m := range f.GetMetric() {
			if of := labelsOf(m); seen[of] {
				t.Errorf("%s of %q is there twice", name, of)
			} else {
				seen[of] = true
			}
		}
	}
	for _, absent := range []string{`id="8"`, `id="10"`, "/unknown"} {
		if strings.Contains(b.String(), absent) {
			t.Errorf("%s, of which nothing is known, has a sample", absent)
		}
	}
}

// labelsOf returns the labels of a sample, sorted by name.
func labelsOf(m *dto.Metric) string {
	var all []string
	for _, l := range m.GetLabel() {
		all = append(all, l.GetName()+"="+l.GetValue())
	}
	return strings.Join(all, " ")
}

// exportedRows returns the rows of exportedLedger as CSV, the heading first.
func exportedRows(t *testing.T) [][]string {
	t.Helper()
	var b bytes.Buffer
	if err := report.LedgerCSV(&b, exportedLedger()); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestLedgerCSV: each number has a row with its unit, the cell of an unknown number is empty, and no cell is a formula.
func TestLedgerCSV(t *testing.T) {
	rows := exportedRows(t)
	if head := strings.Join(rows[0], ","); head !=
		"kind,id,name,cgroup,context,charge,workload,component,metric,unit,value" {
		t.Errorf("the columns are %s", head)
	}
	values := map[string][]string{}
	for _, row := range rows[1:] {
		kind, id, cgroup, metric, unit, value := row[0], row[1], row[3], row[8], row[9], row[10]
		values[strings.Join([]string{kind, id, cgroup, metric}, " ")] =
			append(values[strings.Join([]string{kind, id, cgroup, metric}, " ")], value)
		if suffix := "_" + unit; unit != "count" && !strings.HasSuffix("_"+metric, suffix) {
			t.Errorf("%s of %s is in %s", metric, kind, unit)
		}
		if _, err := strconv.ParseFloat(value, 64); err != nil && value != "" {
			t.Errorf("%q", row)
		}
		for _, cell := range row[:8] {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@") || strings.ContainsAny(cell, "\x1b\n") {
				t.Errorf("%q", row)
			}
		}
	}
	for of, want := range map[string]string{
		"cgroup  /agent cpu_seconds": "2 0.5", "cgroup  /unknown cpu_seconds": "", "program 8  run_seconds": "",
		"program 7  run_seconds": "0.25", "map 9  bytes": "4096", "program 7  runs": "1099511627776",
		"window   seconds": "10",
	} {
		if got := values[of]; len(got) == 0 || strings.Join(got, " ") != want {
			t.Errorf("%s is %q, want %q", of, got, want)
		}
	}
}

// TestLedgersAreWhole: options that shorten the output for people do not shorten the formats for programs.
func TestLedgersAreWhole(t *testing.T) {
	l := exportedLedger()
	for _, f := range report.Ledgers.Formats() {
		var all, some bytes.Buffer
		for w, o := range map[io.Writer]report.LedgerOptions{&all: {Top: -1}, &some: {Top: 1, Depth: 1}} {
			if err := f.Ledger(w, l, report.Options{Ledger: o}); err != nil {
				t.Fatal(err)
			}
		}
		if same := bytes.Equal(all.Bytes(), some.Bytes()); same != (f.Name != "text") {
			t.Errorf("%s with and without limits is the same: %v", f.Name, same)
		}
	}
}

// TestLedgerPage: docs/weigh.md lists every metric of the formats for programs, under its kind.
func TestLedgerPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/weigh.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := exportedRows(t)
	for _, row := range rows[1:] {
		kind, metric := row[0], row[8]
		_, line, _ := strings.Cut(string(page), "\n| `"+kind+"` | ")
		if line, _, _ = strings.Cut(line, "\n"); !strings.Contains(line, "`"+metric+"`") {
			t.Errorf("docs/weigh.md does not list %s of %s", metric, kind)
		}
	}
}
