package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "openmetrics", Help: "for a Pushgateway or node_exporter's textfile collector",
		Run: func(w io.Writer, r *Run, _ Options) error { return OpenMetrics(w, r.Summary, r.Record) },
	})
}

// OpenMetrics writes a summary in the text format of OpenMetrics 1.0, for a Pushgateway or node_exporter's textfile
// collector. Every family is a gauge. There are no timestamps, which these refuse.
func OpenMetrics(w io.Writer, s *analysis.Summary, run record.Run) error {
	whole := map[string]string{"experiment": clean(s.Experiment), "run": clean(run.ID)}
	e := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeOpenMetrics))
	// the one that metrics are added to: all of a family come in turn, and it is written with the next
	var f *dto.MetricFamily
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
