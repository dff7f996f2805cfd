package report

import (
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
)

func init() {
	register(Format{
		Name: "openmetrics", Help: "for a Pushgateway or node_exporter's textfile collector",
		Run:    func(w io.Writer, r *Run, _ Options) error { return OpenMetrics(w, r.Summary, r.Record) },
		Ledger: func(w io.Writer, l *ledger.Ledger, _ Options) error { return LedgerOpenMetrics(w, l) },
	})
}

// OpenMetrics writes a summary in the text format of OpenMetrics 1.0, for a Pushgateway or node_exporter's textfile
// collector. Every family is a gauge. There are no timestamps, because these two refuse them.
func OpenMetrics(w io.Writer, s *analysis.Summary, run record.Run) error {
	x := newExposition(w, map[string]string{"experiment": s.Experiment, "run": run.ID})
	x.add("run_valid", "1 where the run is valid and whole, else 0.", nil, truth(s.Valid && !s.Partial))
	x.add("run_started_seconds", "When the run began, in seconds since 1970.", nil, float64(run.Started.UnixMilli())/1e3)
	x.add("run_blocks", "Complete blocks of the run.", nil, float64(s.Blocks))
	for _, v := range s.Verdicts {
		for _, result := range []analysis.Result{analysis.Holds, analysis.Fails, analysis.Undecided} {
			x.add("assertion", "1 at the result of the assertion, 0 at the others.",
				map[string]string{"assertion": clean(v.Assertion), "result": string(result)}, truth(v.Result == result))
		}
	}
	exported(s, func(of statistic, e *analysis.Estimate, v float64) {
		labels := attributes(e)
		labels["metric"] = clean(e.Metric)
		x.add(of.name, of.help, labels, v)
	})
	return x.close("the summary")
}

// exposition writes gauges in the text format of OpenMetrics. The samples of one family must be added in sequence.
type exposition struct {
	to     expfmt.Encoder
	whole  map[string]string // labels of every sample
	family *dto.MetricFamily // the current family, written when the next one begins
	// series maps labels to the samples of the current family if sums is set: samples with the same labels then add up.
	series map[string]*dto.Metric
	sums   bool
	failed error
}

func newExposition(w io.Writer, whole map[string]string) *exposition {
	return &exposition{to: expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeOpenMetrics)), whole: whole}
}

// write writes the current family.
func (x *exposition) write() {
	if x.family != nil && x.failed == nil {
		x.failed = x.to.Encode(x.family)
	}
}

func (x *exposition) add(name, help string, labels map[string]string, v float64) {
	if name = "tare_" + name; x.family.GetName() != name {
		x.write()
		x.family = &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_GAUGE.Enum()}
		if x.sums {
			x.series = map[string]*dto.Metric{}
		}
	}
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, x.whole)
	m, key := &dto.Metric{Gauge: &dto.Gauge{Value: &v}}, ""
	for label, value := range lists.ByKey(all) {
		value = strings.ToValidUTF8(clean(value), "?")
		m.Label = append(m.Label, &dto.LabelPair{Name: new(label), Value: &value})
		key += strconv.Quote(label) + strconv.Quote(value)
	}
	if old := x.series[key]; old != nil {
		old.Gauge.Value = new(old.Gauge.GetValue() + v)
		return
	}
	if x.sums {
		x.series[key] = m
	}
	x.family.Metric = append(x.family.Metric, m)
}

// close writes the end of the text. Errors refer to it by the given text, such as "the summary".
func (x *exposition) close(what string) error {
	x.write()
	if closer, ok := x.to.(expfmt.Closer); ok && x.failed == nil {
		x.failed = closer.Close()
	}
	if x.failed != nil {
		return fmt.Errorf("writing %s as OpenMetrics: %w", what, x.failed)
	}
	return nil
}
