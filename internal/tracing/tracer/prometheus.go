package tracer

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// selector selects samples of a Prometheus metric by the metric's name and by labels that they must have, such as
// events_total{type="exec"}.
type selector struct {
	name   string
	labels map[string]string
}

var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`)

// parseSelector parses a selector. The error continues a sentence that begins with the selector's name.
func parseSelector(text string) (*selector, error) {
	text = strings.TrimSpace(text)
	name, _, labelled := strings.Cut(text, "{")
	name = strings.TrimSpace(name)
	if name == "" || metricName.FindString(name) != name {
		return nil, fmt.Errorf("is not the name of a metric: %q", name)
	}
	if !labelled {
		return &selector{name: name}, nil
	}
	if strings.Contains(text, "\n") || !strings.HasSuffix(text, "}") {
		return nil, fmt.Errorf("does not end with its labels: %q", text)
	}
	samples, err := parseSamples(name, text+" 0\n") // a sample is a selector followed by a value
	if err != nil {
		return nil, fmt.Errorf("has labels that cannot be read: %w", err)
	}
	if len(samples) != 1 || samples[0].TimestampMs != nil { // a{b="c"} 1 {d="e"}
		return nil, fmt.Errorf("is not one name with labels: %q", text)
	}
	return &selector{name: name, labels: labelsOf(samples[0])}, nil
}

// sum adds up the samples that the selector selects on a page in Prometheus's text format. It returns false if there
// are none.
//
// Only the metric's own samples are parsed, because a page of metrics may be long, and an error in another metric does
// not matter here. Without its # TYPE line a metric is untyped, so that the _count of a histogram is a metric like any
// other. Prometheus itself refuses a whole page if it has any error, and a page with carriage returns.
func (s *selector) sum(page string) (total int64, seen bool, err error) {
	var own strings.Builder
	for line := range strings.Lines(page) {
		sample := strings.TrimLeft(line, " \t")
		if strings.HasPrefix(sample, "#") {
			continue
		}
		if strings.Count(escapes.Replace(line), `"`)%2 == 1 { // the next line may be part of a label
			return 0, false, fmt.Errorf("the page of metrics has a label that does not end on its line: %.100q", line)
		}
		if metricName.FindString(sample) == s.name ||
			strings.HasPrefix(sample, "{") && strings.Contains(sample, `"`+s.name+`"`) {
			own.WriteString(plainSample(line) + "\n")
		}
	}
	samples, err := parseSamples(s.name, own.String())
	if err != nil {
		return 0, false, fmt.Errorf("the metric %s cannot be read: %w", s.name, err)
	}
	sum, sets := 0.0, map[string]bool{}
	for _, m := range samples {
		labels := labelsOf(m)
		set := fmt.Sprintf("%q", labels) // sorted by name
		if sets[set] {                   // Prometheus drops the second sample
			return 0, false, fmt.Errorf("the metric %s has two samples with the same labels, %s", s.name, set)
		}
		sets[set] = true
		if !s.matches(labels) {
			continue
		}
		v := m.GetUntyped().GetValue()
		if math.IsNaN(v) || v < 0 || v >= 1<<53 {
			return 0, false, fmt.Errorf("the metric %s has a sample of %v, which is not a count", s.name, v)
		}
		sum, seen = sum+v, true
	}
	if sum >= 1<<63 {
		return 0, false, fmt.Errorf("the metric %s adds up to %v, which is not a count", s.name, sum)
	}
	return int64(math.Round(sum)), seen, nil
}

// escapes removes escaped characters from labels.
var escapes = strings.NewReplacer(`\\`, "", `\"`, "")

// sampleLine matches a sample: its name with labels, its value, its timestamp, and an exemplar.
var sampleLine = regexp.MustCompile(
	`^\s*([\w:]*[ \t]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?)[ \t]*([^\s{}]+)(?:[ \t]+([^\s#]+))?\s*(?:#.*)?\s*$`)

// plainSample returns a line without what only OpenMetrics allows: an exemplar, a timestamp in fractional seconds, and
// a carriage return at the end.
func plainSample(line string) string {
	m := sampleLine.FindStringSubmatch(line)
	if m == nil {
		return strings.TrimSpace(line)
	}
	if _, err := strconv.ParseFloat(m[3], 64); err == nil {
		m[3] = "" // the timestamp does not matter
	}
	return strings.TrimSpace(strings.Join(m[1:], " "))
}

// parseSamples parses lines in the text format that contain samples of one metric.
func parseSamples(name, lines string) ([]*dto.Metric, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(lines))
	if err != nil {
		return nil, err
	}
	return families[name].GetMetric(), nil
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		if l.GetValue() != "" { // an empty label is the same as none
			labels[l.GetName()] = l.GetValue()
		}
	}
	return labels
}

func (s *selector) matches(labels map[string]string) bool {
	for name, value := range s.labels {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// Limits of one request for a page of metrics: its duration, and the bytes of the page.
const (
	scrapeTime  = 10 * time.Second
	scrapeBytes = 16 << 20
)

// scrape gets a page of metrics.
func scrape(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("reading the metrics at %s: %w", url, err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: the page is the tracer's
	answer, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("reading the metrics: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("reading the metrics at %s: the answer is %s", url, answer.Status)
	}
	page, err := io.ReadAll(io.LimitReader(answer.Body, scrapeBytes+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("reading the metrics at %s: %w", url, err)
	case len(page) > scrapeBytes:
		return "", fmt.Errorf("reading the metrics at %s: the page is longer than %d MiB", url, scrapeBytes>>20)
	}
	return string(page), nil
}
