package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	otlpcommon "go.opentelemetry.io/proto/otlp/common/v1"
	otlpmetrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	otlpresource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "otlp", Help: "JSON for an OpenTelemetry collector",
		Run: func(w io.Writer, r *Run, _ Options) error { return OTLP(w, r.Summary, r.Record) },
	})
}

// ucum converts a unit to UCUM, which OpenTelemetry uses.
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
	switch {
	case per == "second":
		return base + "/s"
	case by:
		return base + "/{" + strings.ReplaceAll(clean(per), " ", "_") + "}"
	}
	return base
}

// OTLP writes a summary as the JSON form of OpenTelemetry's ExportMetricsServiceRequest, which a collector accepts at
// /v1/metrics. Each metric of Tare is a gauge. Its points have the statistic (estimate, estimate_lower, difference
// ...) as an attribute, and the time at which the run began.
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
		of              *analysis.Estimate // nil: the point is about the run
		value           float64
	}
	points := map[string][]point{} // by metric name
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
				for label, value := range lists.ByKey(labels) {
					all = append(all, text(label, value))
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
	// The messages around the metrics are written by hand: a point has up to 64 factors, each of them a message, so
	// encoding all metrics at once would take a hundred times the memory of the record.
	out := bufio.NewWriter(w)
	put := func(before string, m proto.Message) {
		// OTLP's JSON encodes enums as numbers.
		data, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(m)
		if err != nil && failed == nil {
			failed = err
		}
		_, _ = out.WriteString(before) // Flush returns the first error
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
