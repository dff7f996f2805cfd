package admission

import (
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
)

// metrics are what the load tells beside what all loads do.
var metrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "admission_capacity_per_second", Unit: quantity.PerSecond, Rank: metric.RankCPU, Pool: metric.Mean,
			Better: metric.Higher, Needs: measured.NeedCost, Headline: true, Family: "cpu",
			How: "Reviews of pods that ended in the window with a patch, and where pods get one with a certificate, over the " +
				"CPU time that the subject used in it: what it would do in a second of one CPU.",
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
			How: "Time from when a pod's review is answered until the pod has its certificate, over a connection of its own: " +
				"mean of all of the trial. The load makes the pod's token and key in it.",
		},
		Value: measured.Seconds(histogramCertificate, measured.Mean),
	},
}
