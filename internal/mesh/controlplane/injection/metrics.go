package injection

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count what a webhook does. The nil Metrics count nothing.
type Metrics struct {
	reviews *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewMetrics makes metrics, and has a registry show them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tare_injection_reviews_total",
			Help: "Reviews of pods, by what became of them and why."}, []string{"result", "why"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tare_injection_review_seconds",
			Help:    "Time from when a review's head was read until its answer was written.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 2, 16)}), // 50 us to 1.6 s
	}
	for _, c := range []prometheus.Collector{m.reviews, m.seconds} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) reviewed(result, why string, took time.Duration) {
	if m == nil {
		return
	}
	m.reviews.WithLabelValues(result, why).Inc()
	m.seconds.Observe(took.Seconds())
}
