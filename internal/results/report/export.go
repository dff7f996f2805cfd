package report

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	otlpcommon "go.opentelemetry.io/proto/otlp/common/v1"
	otlpmetrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	otlpresource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

// csvColumns are those of CSV before the factors, and after them.
var csvColumns = [2][]string{
	{"experiment", "run", "arm", "component", "metric", "unit"},
	{
		"value", "lo", "hi", "confidence", "n", "method", "withheld", "baseline", "difference", "difference_lo",
		"difference_hi", "difference_confidence", "resolved", "unresolved", "smallest_visible", "ratio", "ratio_lo",
		"ratio_hi", "run_valid", "run_partial",
	},
}

// CSV writes a row for each estimate of a summary (RFC 4180), with a column for each factor. What is not known is
// empty, never 0. Text that a spreadsheet would take for a formula has an apostrophe before it.
func CSV(w io.Writer, s *analysis.Summary, run record.Run) error {
	factors := map[string]bool{}
	for _, e := range s.Estimates {
		for name := range e.Factors {
			factors[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(factors))
	head := slices.Clone(csvColumns[0])
	for _, name := range names {
		head = append(head, cell("factor_"+name))
	}
	c := csv.NewWriter(w)
	if err := c.Write(append(head, csvColumns[1]...)); err != nil {
		return fmt.Errorf("writing the estimates as CSV: %w", err)
	}
	for _, e := range s.Estimates {
		r := []string{cell(s.Experiment), cell(run.ID), cell(e.Arm), cell(e.Component), cell(e.Metric), cell(e.Unit)}
		for _, name := range names {
			r = append(r, cell(e.Factors[name]))
		}
		r = append(r, decimal(&e.Value), decimal(e.Lo), decimal(e.Hi), known(e.Confidence), strconv.Itoa(e.N),
			cell(e.Method), cell(e.Withheld), cell(e.Baseline))
		d, ratio := e.Difference, e.Ratio
		if d == nil {
			r = append(r, "", "", "", "", "", "", "")
		} else {
			r = append(r, decimal(&d.Value), decimal(d.Lo), decimal(d.Hi), known(d.Confidence),
				strconv.FormatBool(d.Resolved), cell(d.Unresolved), decimal(d.SmallestVisible))
		}
		if ratio == nil {
			r = append(r, "", "", "")
		} else {
			r = append(r, decimal(&ratio.Value), decimal(ratio.Lo), decimal(ratio.Hi))
		}
		r = append(r, strconv.FormatBool(s.Valid), strconv.FormatBool(s.Partial))
		if err := c.Write(r); err != nil {
			return fmt.Errorf("writing the estimates as CSV: %w", err)
		}
	}
	c.Flush()
	if err := c.Error(); err != nil {
		return fmt.Errorf("writing the estimates as CSV: %w", err)
	}
	return nil
}

// cell is text as a cell of a table.
func cell(text string) string {
	text = clean(text)
	if text == "" || !strings.ContainsRune("=+-@", rune(text[0])) {
		return text
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return text // a number, such as a level below 0
	}
	return "'" + text
}

func decimal(v *float64) string {
	if v == nil || !finite(*v) {
		return ""
	}
	return strconv.FormatFloat(*v, 'g', -1, 64)
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func known(v float64) string {
	if v == 0 {
		return ""
	}
	return decimal(&v)
}

// statistic is one number of an estimate, as exports for monitoring name it.
type statistic struct {
	name, help string
	of         func(*analysis.Summary, *analysis.Estimate) *float64
}

// statistics are those of estimates. What is not known has no sample.
var statistics = []statistic{
	{"estimate", "The value, the median over blocks or the pooled share.",
		func(_ *analysis.Summary, e *analysis.Estimate) *float64 { return &e.Value }},
	{"estimate_lower", "The lower end of the 95 % interval of the value.",
		func(_ *analysis.Summary, e *analysis.Estimate) *float64 { return e.Lo }},
	{"estimate_upper", "The upper end of the 95 % interval of the value.",
		func(_ *analysis.Summary, e *analysis.Estimate) *float64 { return e.Hi }},
	{"difference", "The difference to the baseline, paired by block.", ofDifference(func(d *analysis.Difference) *float64 {
		return &d.Value
	})},
	{"difference_lower", "The lower end of the 95 % interval of the difference.",
		ofDifference(func(d *analysis.Difference) *float64 { return d.Lo })},
	{"difference_upper", "The upper end of the 95 % interval of the difference.",
		ofDifference(func(d *analysis.Difference) *float64 { return d.Hi })},
	{"difference_resolved", "1 where the difference is larger than noise explains, else 0.",
		ofDifference(func(d *analysis.Difference) *float64 { return new(truth(d.Resolved)) })},
	{"smallest_visible", "The smallest difference that the run can see.",
		ofDifference(func(d *analysis.Difference) *float64 { return d.SmallestVisible })},
}

func ofDifference(of func(*analysis.Difference) *float64) func(*analysis.Summary, *analysis.Estimate) *float64 {
	return func(_ *analysis.Summary, e *analysis.Estimate) *float64 {
		if e.Difference == nil {
			return nil
		}
		return of(e.Difference)
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// exported calls with each number of a summary that may be quoted: of withheld estimates there are none.
func exported(s *analysis.Summary, call func(statistic, *analysis.Estimate, float64)) {
	for _, of := range statistics {
		for i := range s.Estimates {
			e := &s.Estimates[i]
			if v := of.of(s, e); e.Withheld == "" && v != nil && finite(*v) {
				call(of, e, *v)
			}
		}
	}
}

// labelOf is a factor as the name of a label: letters, digits and underscores.
func labelOf(factor string) string {
	return "factor_" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, factor)
}

// attributes are what an estimate is of. Factors whose names differ in their punctuation alone share a label, with
// their levels in the order of their names.
func attributes(e *analysis.Estimate) map[string]string {
	all := map[string]string{"arm": clean(e.Arm), "unit": clean(e.Unit)}
	if e.Component != "" {
		all["component"] = clean(e.Component)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Factors)) {
		label := labelOf(name)
		if was, is := all[label]; is {
			all[label] = was + "," + clean(e.Factors[name])
		} else {
			all[label] = clean(e.Factors[name])
		}
	}
	return all
}

// OpenMetrics writes a summary in the text format of OpenMetrics 1.0, for a Pushgateway or node_exporter's textfile
// collector. Every family is a gauge. There are no timestamps, which these refuse.
func OpenMetrics(w io.Writer, s *analysis.Summary, run record.Run) error {
	whole := map[string]string{"experiment": clean(s.Experiment), "run": clean(run.ID)}
	e := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeOpenMetrics))
	var f *dto.MetricFamily // the one that metrics are added to: all of a family come in turn, and it is written with the next
	var failed error
	write := func() {
		if f == nil || failed != nil {
			return
		}
		if err := e.Encode(f); err != nil {
			failed = fmt.Errorf("writing the summary as OpenMetrics: %w", err)
		}
	}
	add := func(name, help string, labels map[string]string, v float64) {
		if name = "tare_" + name; f.GetName() != name {
			write()
			f = &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_GAUGE.Enum()}
		}
		m := &dto.Metric{Gauge: &dto.Gauge{Value: &v}}
		all := maps.Clone(whole)
		maps.Copy(all, labels)
		for _, label := range slices.Sorted(maps.Keys(all)) {
			m.Label = append(m.Label, &dto.LabelPair{Name: new(label), Value: new(strings.ToValidUTF8(all[label], "?"))})
		}
		f.Metric = append(f.Metric, m)
	}
	add("run_valid", "1 where the run is valid and whole, else 0.", nil, truth(s.Valid && !s.Partial))
	add("run_started_seconds", "When the run began, in seconds since 1970.", nil, float64(run.Started.UnixMilli())/1e3)
	add("run_blocks", "Complete blocks of the run.", nil, float64(s.Blocks))
	for _, v := range s.Verdicts {
		for _, result := range []analysis.Result{analysis.Holds, analysis.Fails, analysis.Undecided} {
			add("assertion", "1 at the result of the assertion, 0 at the others.",
				map[string]string{"assertion": clean(v.Assertion), "result": string(result)}, truth(v.Result == result))
		}
	}
	exported(s, func(of statistic, e *analysis.Estimate, v float64) {
		labels := attributes(e)
		labels["metric"] = clean(e.Metric)
		add(of.name, of.help, labels, v)
	})
	if write(); failed != nil {
		return failed
	}
	if closer, ok := e.(expfmt.Closer); ok {
		if err := closer.Close(); err != nil {
			return fmt.Errorf("writing the summary as OpenMetrics: %w", err)
		}
	}
	return nil
}

// ucum is a unit as OpenTelemetry wants it (UCUM).
func ucum(unit string) string {
	base, per, by := strings.Cut(unit, " per ")
	switch base {
	case quantity.Seconds:
		base = "s"
	case quantity.Bytes:
		base = "By"
	case quantity.CPUs:
		base = "{CPU}"
	case quantity.PerSecond:
		return "1/s"
	default:
		base = "1"
	}
	if by {
		return base + "/{" + strings.ReplaceAll(clean(per), " ", "_") + "}"
	}
	return base
}

// OTLP writes a summary as the JSON form of OpenTelemetry's ExportMetricsServiceRequest, which a collector takes at
// /v1/metrics. Each metric of Tare is a gauge, whose points have the statistic (estimate, estimate_lower, difference
// ...) as an attribute; their time is that at which the run began.
func OTLP(w io.Writer, s *analysis.Summary, run record.Run) error {
	text := func(key, value string) *otlpcommon.KeyValue {
		return &otlpcommon.KeyValue{Key: key, Value: &otlpcommon.AnyValue{
			Value: &otlpcommon.AnyValue_StringValue{StringValue: strings.ToValidUTF8(clean(value), "?")},
		}}
	}
	var began uint64
	if ns := run.Started.UnixNano(); ns > 0 {
		began = uint64(ns)
	}
	type point struct {
		statistic, unit string
		of              *analysis.Estimate // nil: of the run
		value           float64
	}
	points := map[string][]point{} // by the metric's name
	var failed error
	exported(s, func(of statistic, e *analysis.Estimate, v float64) {
		unit, name := ucum(e.Unit), e.Metric
		if of.name == "difference_resolved" && unit != "1" {
			unit, name = "1", name+".resolved"
		}
		points[name] = append(points[name], point{of.name, unit, e, v})
	})
	points["run.valid"] = append(points["run.valid"], point{unit: "1", value: truth(s.Valid && !s.Partial)})
	metric := func(name string) *otlpmetrics.Metric {
		g := &otlpmetrics.Gauge{}
		for _, p := range points[name] {
			var all []*otlpcommon.KeyValue
			if p.of != nil {
				all = append(all, text("statistic", p.statistic))
				labels := attributes(p.of)
				delete(labels, "unit")
				for _, label := range slices.Sorted(maps.Keys(labels)) {
					all = append(all, text(label, labels[label]))
				}
			}
			g.DataPoints = append(g.DataPoints, &otlpmetrics.NumberDataPoint{
				TimeUnixNano: began, Attributes: all, Value: &otlpmetrics.NumberDataPoint_AsDouble{AsDouble: p.value},
			})
		}
		return &otlpmetrics.Metric{
			Name: strings.ToValidUTF8("tare."+clean(name), "?"), Unit: strings.ToValidUTF8(points[name][0].unit, "?"),
			Data: &otlpmetrics.Metric_Gauge{Gauge: g},
		}
	}
	// The messages around the metrics are written here, for with up to 64 factors a point, each of which is a message, all
	// metrics at once would take a hundred times the memory of the record.
	out := bufio.NewWriter(w)
	put := func(before string, m proto.Message) {
		data, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(m) // OTLP has enums as numbers
		if err != nil && failed == nil {
			failed = err
		}
		_, _ = out.WriteString(before) // Flush tells its errors
		_, _ = out.Write(data)
	}
	put(`{"resourceMetrics":[{"resource":`, &otlpresource.Resource{Attributes: []*otlpcommon.KeyValue{
		text("service.name", "tare"), text("service.version", run.Version), text("host.name", run.Environment.Hostname),
		text("tare.experiment", s.Experiment), text("tare.run", run.ID),
	}})
	put(`,"scopeMetrics":[{"scope":`, &otlpcommon.InstrumentationScope{Name: "tare", Version: clean(run.Version)})
	before := `,"metrics":[`
	for _, name := range slices.Sorted(maps.Keys(points)) {
		put(before, metric(name))
		before = ","
	}
	_, _ = out.WriteString("]}]}]}\n")
	if err := cmp.Or(failed, out.Flush()); err != nil {
		return fmt.Errorf("writing the summary as OTLP: %w", err)
	}
	return nil
}
