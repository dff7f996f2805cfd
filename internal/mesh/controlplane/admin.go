package controlplane

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tare/internal/lib/limit"
	"tare/internal/mesh/controlplane/ads"
)

// Admin exposes a control plane's activity: Prometheus metrics, and its last changes as JSON. Create it with NewAdmin,
// and pass it to one Plane (PlaneOptions.Admin).
type Admin struct {
	registry *prometheus.Registry
	history  *history

	responses, resources, removed, acks, refusals *prometheus.CounterVec
	changes                                       prometheus.Counter
	waited                                        prometheus.Histogram
	streams                                       func() int
	proxies                                       func() int
}

// answerBuckets are the upper bounds of the latency histogram, in seconds: 1 ms to 16 s.
var answerBuckets = prometheus.ExponentialBuckets(0.001, 2, 15)

// NewAdmin returns an Admin that is not attached to a control plane yet.
func NewAdmin() *Admin {
	a := &Admin{registry: prometheus.NewRegistry(), history: newHistory()}
	shown := promauto.With(a.registry)
	counter := func(name, help string) *prometheus.CounterVec {
		return shown.NewCounterVec(prometheus.CounterOpts{Name: "tare_controlplane_" + name, Help: help}, []string{"type"})
	}
	a.responses = counter("responses_total", "Responses handed to the transport.")
	a.resources = counter("resources_total", "Resources in these responses.")
	a.removed = counter("removed_total", "Names of removed resources in delta responses.")
	a.acks = counter("acks_total", "Responses that data planes acknowledged.")
	a.refusals = counter("nacks_total", "Responses that data planes refused.")
	a.changes = shown.NewCounter(prometheus.CounterOpts{Name: "tare_controlplane_changes_total",
		Help: "Changes of the mesh that were applied."})
	a.waited = shown.NewHistogram(prometheus.HistogramOpts{Name: "tare_controlplane_answer_seconds",
		Help:    "Time from when a change was set until a data plane answered a response that contains it.",
		Buckets: answerBuckets})
	of := func(get *func() int) func() float64 {
		return func() float64 {
			if *get == nil {
				return 0 // no control plane is attached yet
			}
			return float64((*get)())
		}
	}
	shown.NewGaugeFunc(prometheus.GaugeOpts{Name: "tare_controlplane_streams",
		Help: "Open discovery streams of data planes."}, of(&a.streams))
	shown.NewGaugeFunc(prometheus.GaugeOpts{Name: "tare_controlplane_proxies",
		Help: "Proxies of the mesh; 0 if all data planes get the same resources."}, of(&a.proxies))
	a.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return a
}

// labelOf returns a type's label in the metrics. Unknown types share a label: data planes may request any type, and
// each label adds a series.
func labelOf(url string) string {
	switch url {
	case ads.ClusterType, ads.EndpointType, ads.SecretType, ads.ListenerType, ads.RouteType:
		return url[strings.LastIndexByte(url, '.')+1:]
	}
	return "other"
}

// watch makes the admin observe what a control plane sends and receives. The callbacks that o already has run
// afterwards.
func (a *Admin) watch(o *Options) {
	sent, answered := o.OnSent, o.OnAnswer
	o.OnSent = func(s Sent) {
		kind := labelOf(s.TypeURL)
		a.responses.WithLabelValues(kind).Inc()
		a.resources.WithLabelValues(kind).Add(float64(s.Resources))
		a.removed.WithLabelValues(kind).Add(float64(s.Removed))
		a.history.sent(s)
		if sent != nil {
			sent(s)
		}
	}
	o.OnAnswer = func(x Answer) {
		if x.Refused == "" {
			a.acks.WithLabelValues(labelOf(x.TypeURL)).Inc()
		} else {
			a.refusals.WithLabelValues(labelOf(x.TypeURL)).Inc()
		}
		if !x.Asked {
			a.waited.Observe(float64(x.Time-x.Since) / 1e9)
		}
		a.history.answered(x)
		if answered != nil {
			answered(x)
		}
	}
}

// Handler serves /metrics and /changes.
func (a *Admin) Handler() http.Handler {
	m := http.NewServeMux()
	m.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	m.HandleFunc("GET /changes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.history.list()) // an error means that the client has gone
	})
	return m
}

// Serve answers at l until ctx ends. It closes l.
func (a *Admin) Serve(ctx context.Context, l net.Listener) error {
	return limit.Serve(ctx, l, &http.Server{Handler: a.Handler(), ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10})
}
