package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	otlpcollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	otlpmetrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
)

// exports returns the runs that every export is tested with: all cases, and one with hostile names.
func exports(t *testing.T) map[string]struct {
	run     record.Run
	summary *analysis.Summary
} {
	t.Helper()
	all := map[string]struct {
		run     record.Run
		summary *analysis.Summary
	}{}
	for name, made := range cases() {
		run, trials := made()
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = struct {
			run     record.Run
			summary *analysis.Summary
		}{run, s}
	}
	hostile := *all["sweep"].summary
	hostile.Estimates = nil
	for _, e := range all["sweep"].summary.Estimates {
		e.Arm = "=cmd|' /C calc'!A0\"\n\\" + e.Arm + "\xff\x1b[31m"
		e.Factors = map[string]string{"a.b": "1", "a-b": "2\n\"", "": "\x00"}
		hostile.Estimates = append(hostile.Estimates, e)
	}
	all["hostile"] = struct {
		run     record.Run
		summary *analysis.Summary
	}{all["sweep"].run, &hostile}
	return all
}

// TestCSV: there is a row for each estimate, a reader of CSV gets every number back exactly, and no cell is a formula
// for a spreadsheet.
func TestCSV(t *testing.T) {
	for name, c := range exports(t) {
		var b bytes.Buffer
		if err := report.CSV(&b, c.summary, c.run); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&b).ReadAll()
		if err != nil || len(rows) != len(c.summary.Estimates)+1 {
			t.Fatalf("%s: %d rows of %d estimates, %v", name, len(rows), len(c.summary.Estimates), err)
		}
		at := map[string]int{}
		for i, head := range rows[0] {
			at[head] = i
		}
		for i, e := range c.summary.Estimates {
			row := rows[i+1]
			if v, err := strconv.ParseFloat(row[at["value"]], 64); err != nil || v != e.Value {
				t.Errorf("%s: %s is %q, want %g", name, e.Metric, row[at["value"]], e.Value)
			}
			if (row[at["lo"]] == "") != (e.Lo == nil) || (row[at["difference"]] == "") != (e.Difference == nil) {
				t.Errorf("%s: %q of %+v", name, row, e)
			}
			for head, text := range map[string]string{"arm": row[at["arm"]], "method": row[at["method"]]} {
				if text != "" && strings.ContainsAny(text[:1], "=+-@\t\r") || strings.ContainsAny(text, "\x1b\x00\n") {
					t.Errorf("%s: %s is %q", name, head, text)
				}
			}
			if rate, has := e.Factors["rate"]; has && row[at["factor_rate"]] != rate {
				t.Errorf("%s: rate is %q, want %q", name, row[at["factor_rate"]], rate)
			}
		}
	}
}

// TestJSON: the document is the encoding of the summary by encoding/json.
func TestJSON(t *testing.T) {
	for name, c := range exports(t) {
		var got, want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetIndent("", "  ")
		if err := errors.Join(e.Encode(c.summary), report.JSON(&got, c.summary)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%s: it is\n%s, want\n%s", name, got.String(), want.String())
		}
	}
}

// TestOpenMetrics: Prometheus's own parser, which node_exporter reads its text files with, reads every value back.
func TestOpenMetrics(t *testing.T) {
	for name, c := range exports(t) {
		var b bytes.Buffer
		if err := report.OpenMetrics(&b, c.summary, c.run); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(b.String(), "\n# EOF\n") {
			t.Errorf("%s does not end as OpenMetrics does", name)
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(&b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		quotable := 0
		for _, e := range c.summary.Estimates {
			if e.Withheld == "" {
				quotable++
			}
		}
		if got := len(families["tare_estimate"].GetMetric()); got != quotable {
			t.Errorf("%s: %d values of %d estimates", name, got, quotable)
		}
		if v := families["tare_run_valid"].GetMetric(); len(v) != 1 ||
			v[0].GetGauge().GetValue() != truth(c.summary.Valid && !c.summary.Partial) {
			t.Errorf("%s: it is valid: %v", name, v)
		}
		for i, m := range families["tare_estimate"].GetMetric() {
			if name != "hostile" && i < len(c.summary.Estimates) && quotable == len(c.summary.Estimates) &&
				m.GetGauge().GetValue() != c.summary.Estimates[i].Value {
				t.Errorf("%s: value %d is %v", name, i, m)
			}
		}
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// TestOTLP: OpenTelemetry's own messages read it, with a point for each number and its time.
func TestOTLP(t *testing.T) {
	for name, c := range exports(t) {
		var b bytes.Buffer
		if err := report.OTLP(&b, c.summary, c.run); err != nil {
			t.Fatal(err)
		}
		var request otlpcollector.ExportMetricsServiceRequest
		if err := protojson.Unmarshal(b.Bytes(), &request); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		points := 0
		for _, m := range request.GetResourceMetrics()[0].GetScopeMetrics()[0].GetMetrics() {
			gauge, ok := m.GetData().(*otlpmetrics.Metric_Gauge)
			if !ok || m.GetUnit() == "" || !strings.HasPrefix(m.GetName(), "tare.") {
				t.Errorf("%s: %v", name, m)
				continue
			}
			for _, p := range gauge.Gauge.GetDataPoints() {
				for _, a := range p.GetAttributes() {
					if a.GetKey() == "statistic" && a.GetValue().GetStringValue() == "estimate" {
						points++
					}
				}
				if p.GetTimeUnixNano() != uint64(c.run.Started.UnixNano()) {
					t.Errorf("%s: a point at %d", name, p.GetTimeUnixNano())
				}
			}
		}
		quotable := 0
		for _, e := range c.summary.Estimates {
			if e.Withheld == "" {
				quotable++
			}
		}
		if points != quotable {
			t.Errorf("%s: %d values of %d estimates", name, points, quotable)
		}
	}
}
