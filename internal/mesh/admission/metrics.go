package admission

import (
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
)

// metrics are the reviews per second of the subject's CPU time, and the time until a pod has its certificate.
var metrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "admission_capacity_per_second", Unit: quantity.PerSecond, Rank: metric.RankCPU, Pool: metric.Mean,
			Better: metric.Higher, Needs: measured.NeedCost, Headline: true, Family: "cpu",
			How: "Reviews that ended in the window with a patch (and a certificate, where pods get one), per second of " +
				"the subject's CPU time.",
			Clause: "reviews pods at {} with one CPU",
		},
		Value: func(m *measured.Measured) (float64, bool) {
			seconds, known := m.RoleSeconds(kind.Subject)
			n := m.Sum(func(r load.Result) float64 { return r.Counts[countFinished] })
			return n / seconds, known && n > 0 && seconds > 0 && !m.WindowCut()
		},
	},
	{
		Definition: metric.Definition{
			Name: "admission_certificate_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged,
			Cost:   true,
			Better: metric.Lower, Needs: measured.NeedWork, Headline: true,
			How: "Mean time from the answer to a pod's review until the pod has its certificate, including making its token " +
				"and key.",
		},
		Value: measured.Seconds(histogramCertificate, measured.Mean),
	},
}
