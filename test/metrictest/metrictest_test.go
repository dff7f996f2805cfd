package metrictest_test

import (
	"strings"
	"testing"

	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/test/metrictest"
)

func TestCheck(t *testing.T) {
	good := metric.Definition{
		Name: "flush_seconds", Unit: quantity.Seconds, Better: metric.Lower, How: "It is timed.", Rank: metric.RankWork,
		Pool: metric.Merged,
		Cost: true, Needs: []metric.Need{},
	}
	if err := metrictest.Check(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says  string
		spoil func(*metric.Definition)
	}{
		{"has no name", func(d *metric.Definition) { d.Name = "" }},
		{`is in "bytes", and its name ends in "seconds"`, func(d *metric.Definition) { d.Unit = quantity.Bytes }},
		{`better when it is "more"`, func(d *metric.Definition) { d.Better = "more" }},
		{`has the pool ""`, func(d *metric.Definition) { d.Pool = "" }},
		{"has the rank 0", func(d *metric.Definition) { d.Rank = 0 }},
		{"does not say what it needs", func(d *metric.Definition) { d.Needs = nil }},
		{"does not say how", func(d *metric.Definition) { d.How = "" }},
		{`is the quantile 0 of the histogram "latency"`, func(d *metric.Definition) { d.Histogram = "latency" }},
		{`is the quantile 0.5 of the histogram ""`, func(d *metric.Definition) { d.Quantile = 0.5 }},
		{"is the quantile 99 of", func(d *metric.Definition) { d.Histogram, d.Quantile = "latency", 99 }},
		{`is "kernel time" per ""`, func(d *metric.Definition) { d.What = "kernel time" }},
		{"is no cost", func(d *metric.Definition) { d.Tail = true }},
		{"is no cost", func(d *metric.Definition) { d.Name, d.Unit = "flush_share", quantity.Part }},
		{"is no cost", func(d *metric.Definition) { d.Rank = metric.RankLatency }},
	} {
		d := good
		c.spoil(&d)
		if err := metrictest.Check(d); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("got %v, want %q", err, c.says)
		}
	}
}
