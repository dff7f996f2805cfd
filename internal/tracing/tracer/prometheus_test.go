package tracer

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// series holds the samples of one metric on a page, as Prometheus parses them.
type series struct {
	sum   float64
	sets  map[string]bool
	doubt bool // a sample is no count, or two have the same labels
}

// byPrometheus parses a page with Prometheus's own parser for a content type; it returns an error for a page that
// Prometheus refuses as a whole.
func byPrometheus(page, contentType string) (metrics map[string]*series, err error) {
	defer func() {
		if of := recover(); of != nil { // {a}0
			err = fmt.Errorf("the parser fails: %v", of)
		}
	}()
	table := labels.NewSymbolTable()
	page = indent.ReplaceAllString(page, "") // indentation would otherwise be part of the name
	p, err := textparse.New([]byte(page), contentType, "text/plain", false, false, table)
	if err != nil {
		return nil, err
	}
	metrics = map[string]*series{}
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return metrics, nil
		case err != nil:
			return nil, err
		case entry != textparse.EntrySeries:
			continue
		}
		var set labels.Labels
		p.Metric(&set)
		name := set.Get(labels.MetricName)
		m := metrics[name]
		if m == nil {
			m = &series{sets: map[string]bool{}}
			metrics[name] = m
		}
		_, _, v := p.Series()
		_, twice := set.HasDuplicateLabelNames()
		key := set.DropMetricName().WithoutEmpty().String()
		m.doubt = m.doubt || twice || m.sets[key] || math.IsNaN(v) || v < 0 || v >= 1<<53
		m.sets[key] = true
		m.sum += v
	}
}

var indent = regexp.MustCompile(`(?m)^[ \t]+`)

var nameOnPage = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)

// sameAsPrometheus compares the parsing of a page with Prometheus's, metric by metric. A page that Prometheus refuses
// as a whole, for example because of an error in another metric, may be accepted. Unless strict, a metric may be
// refused.
func sameAsPrometheus(t *testing.T, page string, strict bool) (compared int) {
	t.Helper()
	for _, contentType := range []string{"text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"} {
		metrics, err := byPrometheus(page, contentType)
		if err != nil {
			continue
		}
		for _, name := range nameOnPage.FindAllString(page, 300) {
			want := metrics[name]
			got, seen, err := (&selector{name: name}).sum(page)
			switch {
			case err != nil:
				if strict && (want == nil || !want.doubt) {
					t.Errorf("%s: %v", name, err)
				}
			case want == nil:
				if seen {
					t.Errorf("%s is read as %d, and is no metric of %q", name, got, page)
				}
			case want.doubt || !seen || float64(got) != math.Round(want.sum):
				t.Errorf("%s: %d (%v), and by Prometheus %+v, of %q", name, got, seen, want, page)
			default:
				compared++
			}
		}
	}
	return compared
}

// oddPages have unusual features, which Prometheus accepts.
var oddPages = []string{
	"a 1", "a 1 1700000000000\nb 2\n", "a NaN\nb +Inf\nc -Inf\nd 1e300\ne -0\n", "a{b=\"c\",} 1\n", "a{} 1\na{b=\"\"} 2\n",
	"a{b=\"c\"} 1\na{b=\"c\"} 1\n", "a 1 1000\na 2 2000\n", "a{b=\"c\",b=\"d\"} 1\n", "\ta 1\n", "a\t1\n",
	"a {b=\"c\"} 1\n",
	"{\"a\",b=\"c\"} 1\na{b=\"d\"} 2\n", "{\"a\"} 1\n{\"a b\"} 5\n", "{b=\"a\",\"c\"} 1\n", "a{\"b.c\"=\"d\"} 1\n",
	"a{b=\"\\\\\\\"\\n}\"} 1\n", "# HELP a \"open\na 1\n", "# a 5\n#a 6\na 1\n",
	"a 1 # {t=\"x\"} 0.5 1.5\n# EOF\n", "a_total 1 1700000000.25 # {} 1\na_created 1.7e9\n# EOF\n",
	"a_bucket{le=\"+Inf\"} 4 # {t=\"} # {\"} 2\na_count 4\na_sum 0.5\n# EOF\n", "a{b=\"c\"}1\n", "a 1\n\n\nb 2\n",
}

// TestAsPrometheus: pages of real exporters and unusual ones are parsed as Prometheus parses them.
func TestAsPrometheus(t *testing.T) {
	files, err := filepath.Glob("testdata/pages/*.*")
	if err != nil || len(files) < 6 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		if filepath.Ext(file) == ".md" {
			continue
		}
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := sameAsPrometheus(t, string(page), true); n == 0 {
			t.Errorf("%s: nothing was compared", file)
		}
	}
	for _, accept := range []string{"text/plain", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"} {
		if n := sameAsPrometheus(t, goPage(t, accept), true); n == 0 {
			t.Errorf("%s: nothing was compared", accept)
		}
	}
	for _, page := range oddPages {
		sameAsPrometheus(t, page, true)
	}
}

// goPage returns a page made by the Go client library, with exemplars and a native histogram.
func goPage(t *testing.T, accept string) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "events_total", Help: "Events."}, []string{"type"})
	waits := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "wait_seconds", Buckets: []float64{1, 2},
		NativeHistogramBucketFactor: 1.1})
	odd := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "odd"}, func() float64 { return math.Inf(1) })
	registry.MustRegister(events, waits, odd)
	exemplar := prometheus.Labels{"trace": `# {a="b"} 1`}
	events.WithLabelValues("a \\ \"b\"\n}").(prometheus.ExemplarAdder).AddWithExemplar(3, exemplar)
	events.WithLabelValues("c").Add(1e6)
	waits.(prometheus.ExemplarObserver).ObserveWithExemplar(1.5, exemplar)
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", accept)
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(answer, request)
	return answer.Body.String()
}

// FuzzAsPrometheus: a page that Prometheus accepts gives the same numbers, or is refused.
func FuzzAsPrometheus(f *testing.F) {
	for _, page := range append(oddPages, "other{x=\"\na 5\n\"} 1\na 2\n", "other{x=\"\n# \"\na 5\n\"} 1\n") {
		f.Add(page)
	}
	f.Fuzz(func(t *testing.T, page string) {
		if len(page) < 2000 && !strings.Contains(page, "\x00") { // a zero byte ends the page for Prometheus's parser
			sameAsPrometheus(t, page, false)
		}
	})
}

// TestLongLine: an error quotes only the beginning of a long line of a page.
func TestLongLine(t *testing.T) {
	s := selector{name: "events_total"}
	_, _, err := s.sum(`a{b="` + strings.Repeat("x", 1<<20) + "\n")
	if err == nil || len(err.Error()) > 500 {
		t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
	}
}
