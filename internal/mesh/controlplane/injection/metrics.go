package injection

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts what a webhook does. A nil Metrics counts nothing.
type Metrics struct {
	reviews *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewMetrics makes metrics and registers them. It panics if r already has them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	shown := promauto.With(r)
	return &Metrics{
		reviews: shown.NewCounterVec(prometheus.CounterOpts{Name: "tare_injection_reviews_total",
			Help: "Reviews of pods, by result and reason."}, []string{"result", "why"}),
		seconds: shown.NewHistogram(prometheus.HistogramOpts{Name: "tare_injection_review_seconds",
			Help:    "Time from when a review's head was read until its answer was written.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 2, 16)}), // 50 us to 1.6 s
	}
}

// reviewed counts a review with a result, the reason for it, and the time it took.
func (m *Metrics) reviewed(result, why string, took time.Duration) {
	if m == nil {
		return
	}
	m.reviews.WithLabelValues(result, why).Inc()
	m.seconds.Observe(took.Seconds())
}
