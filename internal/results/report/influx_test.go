package report

import (
	"bytes"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/influxdata/line-protocol/v2/lineprotocol"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// influxPoint is a line as InfluxDB's own decoder reads it.
type influxPoint struct {
	measurement string
	tags        map[string]string
	fields      map[string]any
	at          time.Time
}

// influxPoints writes a summary in the format Influx, and decodes that.
func influxPoints(t *testing.T, s *analysis.Summary, run record.Run) (points []influxPoint) {
	t.Helper()
	var b bytes.Buffer
	if err := Influx(&b, s, run); err != nil {
		t.Fatal(err)
	}
	lines := strings.Count(b.String(), "\n")
	d := lineprotocol.NewDecoder(&b)
	for d.Next() {
		p := influxPoint{tags: map[string]string{}, fields: map[string]any{}}
		name, err := d.Measurement()
		if err != nil {
			t.Fatal(err)
		}
		p.measurement = string(name)
		last := ""
		for {
			key, value, err := d.NextTag()
			if err != nil {
				t.Fatal(err)
			}
			if key == nil {
				break
			}
			if string(key) <= last || len(value) == 0 {
				t.Fatalf("the tag %q=%q comes after %q", key, value, last)
			}
			last = string(key)
			p.tags[last] = string(value)
		}
		for {
			key, value, err := d.NextField()
			if err != nil {
				t.Fatal(err)
			}
			if key == nil {
				break
			}
			if _, again := p.fields[string(key)]; again {
				t.Fatalf("the field %q is there twice", key)
			}
			p.fields[string(key)] = value.Interface()
		}
		if p.at, err = d.Time(lineprotocol.Nanosecond, time.Time{}); err != nil {
			t.Fatal(err)
		}
		points = append(points, p)
	}
	if err := d.Err(); err != nil || len(points) != lines {
		t.Fatalf("%d points in %d lines: %v", len(points), lines, err)
	}
	return points
}

// checkInflux compares the points with the summary: they have every number that may be quoted, to the last digit, and
// no field for an unknown value.
func checkInflux(t *testing.T, s *analysis.Summary, run record.Run, points []influxPoint) {
	t.Helper()
	var want []influxPoint
	expect := func(measurement string, tags map[string]string, fields map[string]any) {
		all := map[string]string{}
		tags["experiment"], tags["host"] = s.Experiment, run.Environment.Hostname
		for key, value := range tags {
			if value = clean(value); value != "" {
				all[endless(clean(key))] = endless(value)
			}
		}
		fields["run"] = clean(run.ID)
		want = append(want, influxPoint{measurement: measurement, tags: all, fields: fields})
	}
	expect("tare_run", map[string]string{}, map[string]any{
		"valid": s.Valid, "partial": s.Partial, "blocks": int64(s.Blocks), "question": clean(s.Question),
	})
	for _, v := range s.Verdicts {
		expect("tare_assertion", map[string]string{"assertion": v.Assertion}, map[string]any{"result": string(v.Result)})
	}
	for i := range s.Estimates {
		e := &s.Estimates[i]
		if e.Withheld != "" {
			continue
		}
		fields := map[string]any{"n": int64(e.N)}
		known := map[string]*float64{"value": &e.Value, "lo": e.Lo, "hi": e.Hi}
		if d := e.Difference; d != nil {
			fields["resolved"] = d.Resolved
			maps.Copy(known, map[string]*float64{"difference": &d.Value, "difference_lo": d.Lo, "difference_hi": d.Hi,
				"smallest_visible": d.SmallestVisible})
		}
		if r := e.Ratio; r != nil {
			maps.Copy(known, map[string]*float64{"ratio": &r.Value, "ratio_lo": r.Lo, "ratio_hi": r.Hi})
		}
		for name, v := range known {
			if v != nil && finite(*v) {
				fields[name] = *v
			}
		}
		tags := attributes(e)
		tags["metric"] = e.Metric
		expect("tare_estimate", tags, fields)
	}
	if len(points) != len(want) {
		t.Fatalf("%d points, want %d", len(points), len(want))
	}
	for i, p := range points {
		w := want[i]
		if p.measurement != w.measurement || !maps.Equal(p.tags, w.tags) || !maps.Equal(p.fields, w.fields) {
			t.Errorf("point %d is %+v, want %+v", i, p, w)
		}
	}
}

// endless returns text without a backslash at its end: it appends an underscore to one.
func endless(text string) string {
	if strings.HasSuffix(text, `\`) {
		return text + "_"
	}
	return text
}

// TestInflux: InfluxDB's decoder reads every number back, with the time at which the run began.
func TestInflux(t *testing.T) {
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, BPF: 3e-6, Latency: 9e-6, Noise: 1e-6,
		MapBytes: 1e6})
	run.Assert = []string{"map_bytes <= 2MB"}
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	s.Estimates[0].Lo, s.Estimates[1].Withheld = nil, "too few blocks"
	points := influxPoints(t, s, run)
	checkInflux(t, s, run, points)
	for _, p := range points {
		if !p.at.Equal(run.Started) {
			t.Errorf("%s is at %v, not %v", p.measurement, p.at, run.Started)
		}
	}
	for _, never := range []time.Time{{}, time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)} {
		run.Started = never
		for _, p := range influxPoints(t, s, run) {
			if !p.at.IsZero() {
				t.Errorf("a run of %v is at %v", never, p.at)
			}
		}
	}
}

// FuzzInflux: whatever names and numbers a summary has, InfluxDB's decoder reads them back.
func FuzzInflux(f *testing.F) {
	f.Add("a b", `c:\`, "d=e,f", `\, "`, "g", 1.5, math.Copysign(0, -1))
	f.Add("", "", "", "", "", 0.0, 1e300)
	f.Add("#", "\n", `\\`, `"`, "é\xff\x00", -1e-300, 5e-324)
	f.Fuzz(func(t *testing.T, id, arm, factor, level, metric string, value, lo float64) {
		run := record.Run{ID: id, Environment: record.Environment{Hostname: level}, Started: time.Unix(1, 2)}
		s := &analysis.Summary{
			Experiment: factor, Question: level,
			Verdicts: []analysis.Verdict{{Assertion: metric, Result: analysis.Holds}},
			Estimates: []analysis.Estimate{{
				Metric: metric, Arm: arm, Component: level, Unit: id, Interval: analysis.Interval{Value: value, Lo: &lo},
				Factors:    map[string]string{factor: level, arm: id},
				Difference: &analysis.Difference{Interval: analysis.Interval{Value: lo}},
			}},
		}
		checkInflux(t, s, run, influxPoints(t, s, run))
	})
}
