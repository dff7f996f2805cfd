package tracer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"tare/internal/lib/text"
)

// A selector names samples of a Prometheus metric: a name, and labels that they must have, such as
// events_total{type="exec"}.
type selector struct {
	name   string
	labels map[string]string
}

var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// parseSelector reads a selector. The error reads on after what it is called.
func parseSelector(text string) (*selector, error) {
	text = strings.TrimSpace(text)
	name, _, labelled := strings.Cut(text, "{")
	name = strings.TrimSpace(name)
	if !metricName.MatchString(name) {
		return nil, fmt.Errorf("is no name of a metric: %q", name)
	}
	if !labelled {
		return &selector{name: name}, nil
	}
	if strings.Contains(text, "\n") || !strings.HasSuffix(text, "}") {
		return nil, fmt.Errorf("does not end with its labels: %q", text)
	}
	chosen, samples, timed := &selector{name: name, labels: map[string]string{}}, 0, false
	// A selector is a sample without its value.
	err := eachSample(metricsPage{text: []byte(text + " 0")}, name, func(l labels.Labels, at bool, _ float64) error {
		samples, timed = samples+1, at
		l.Range(func(l labels.Label) {
			if l.Name != model.MetricNameLabel {
				chosen.labels[l.Name] = l.Value
			}
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("has labels that cannot be read: %w", err)
	}
	if samples != 1 || timed { // a{b="c"} 1 {d="e"}
		return nil, fmt.Errorf("is not one name with labels: %q", text)
	}
	return chosen, nil
}

// A metricsPage is a page of metrics as a program serves it.
type metricsPage struct {
	text        []byte
	openMetrics bool // by its Content-Type; otherwise it is in the text format
}

// sum adds up the samples that the selector names; false where there are none. Prometheus takes a page as a whole, so a
// line that it cannot read makes the page unreadable, whatever metric the line is of. Types of metrics have no effect:
// the _count of a histogram is a metric like any other.
func (s *selector) sum(page metricsPage) (total int64, seen bool, err error) {
	sum, have := 0.0, map[uint64]bool{}
	err = eachSample(page, s.name, func(l labels.Labels, _ bool, v float64) error {
		if !s.matches(l) {
			return nil
		}
		if have[l.Hash()] {
			return fmt.Errorf("the sample %s is there twice", text.ClipTo(l.String(), 200))
		}
		if math.IsNaN(v) || v < 0 || v >= 1<<53 {
			return fmt.Errorf("a sample of %v is no count", v)
		}
		have[l.Hash()] = true
		sum += v
		return nil
	})
	if err == nil && sum >= 1<<63 {
		err = fmt.Errorf("the sum %v is no count", sum)
	}
	if err != nil {
		return 0, false, fmt.Errorf("the metric %s cannot be read: %w", s.name, err)
	}
	return int64(math.Round(sum)), len(have) > 0, nil
}

func (s *selector) matches(l labels.Labels) bool {
	for name, value := range s.labels {
		if !sameLabel(name, l.Get(name), value) {
			return false
		}
	}
	return true
}

// sameLabel compares values of a label: bounds of buckets and quantiles as numbers, which Prometheus writes its own way
// (le="1" as le="1.0").
func sameLabel(name, a, b string) bool {
	if a == b || name != model.BucketLabel && name != model.QuantileLabel {
		return a == b
	}
	x, err := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	return err == nil && err2 == nil && x == y
}

// maxBlank is the most blank lines in a row. Prometheus's parser calls itself for each (PromParser.Next), and a page of
// nothing else would overflow the stack, which ends the process.
const maxBlank = 10000

// eachSample calls f for every sample of a metric, with its labels, whether it has a timestamp, and its value. It reads
// the page with Prometheus's own parsers.
func eachSample(page metricsPage, name string, f func(l labels.Labels, timed bool, v float64) error) error {
	if blankLines(page.text) > maxBlank {
		return fmt.Errorf("the page has more than %d blank lines in a row", maxBlank)
	}
	parser := textparse.NewPromParser(page.text, nil, false)
	if page.openMetrics {
		parser = textparse.NewOpenMetricsParser(page.text, nil)
	}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errors.New(text.ClipTo(err.Error(), 300)) // it quotes the line, which may be long
		}
		if entry != textparse.EntrySeries {
			continue
		}
		series, at, v := parser.Series()
		if !bytes.Contains(series, []byte(name)) {
			continue
		}
		var l labels.Labels
		if parser.Labels(&l); l.Get(model.MetricNameLabel) != name {
			continue
		}
		if twice, is := l.HasDuplicateLabelNames(); is {
			return fmt.Errorf("a sample has the label %s twice", text.ClipTo(twice, 100))
		}
		if err := f(l, at != nil, v); err != nil {
			return err
		}
	}
}

// blankLines is the most blank lines in a row.
func blankLines(page []byte) (most int) {
	n := 0
	for _, c := range page {
		switch c {
		case '\n':
			n++
			most = max(most, n)
		case ' ', '\t':
		default:
			n = 0
		}
	}
	return most
}

// The bounds of one look at a page of metrics.
const (
	scrapeTime  = 10 * time.Second
	scrapeBytes = 16 << 20
)

// scrape gets a page of metrics.
func scrape(ctx context.Context, url string) (metricsPage, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return metricsPage{}, fmt.Errorf("reading the metrics at %s: %w", url, err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: the page is the tracer's own
	answer, err := client.Do(request)
	if err != nil {
		return metricsPage{}, fmt.Errorf("reading the metrics: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return metricsPage{}, fmt.Errorf("reading the metrics at %s: the answer is %s", url, answer.Status)
	}
	page, err := io.ReadAll(io.LimitReader(answer.Body, scrapeBytes+1))
	switch {
	case err != nil:
		return metricsPage{}, fmt.Errorf("reading the metrics at %s: %w", url, err)
	case len(page) > scrapeBytes:
		return metricsPage{}, fmt.Errorf("reading the metrics at %s: the page is longer than %d MiB", url, scrapeBytes>>20)
	}
	media, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")) // of another kind, or without one, it is text
	return metricsPage{text: page, openMetrics: media == "application/openmetrics-text"}, nil
}
