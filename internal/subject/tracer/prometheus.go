package tracer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// selector names samples of a Prometheus metric: a name, and labels that they must have, such as events_total{type="exec"}.
type selector struct {
	name   string
	labels map[string]string
}

var metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)

// parseSelector reads a selector. The error reads on after what it is called.
func parseSelector(text string) (*selector, error) {
	name, rest, labelled := strings.Cut(strings.TrimSpace(text), "{")
	name = strings.TrimSpace(name)
	if !metricName.MatchString(name) {
		return nil, fmt.Errorf("is no name of a metric: %q", name)
	}
	s := &selector{name: name, labels: map[string]string{}}
	if !labelled {
		return s, nil
	}
	labels, rest, err := readLabels(rest)
	if err == nil && strings.TrimSpace(rest) != "" {
		err = fmt.Errorf("has %q after its labels", rest)
	}
	s.labels = labels
	return s, err
}

// readLabels reads labels from after their { to after their }.
func readLabels(text string) (labels map[string]string, rest string, err error) {
	labels = map[string]string{}
	for {
		text = strings.TrimLeft(text, " \t,")
		if rest, ok := strings.CutPrefix(text, "}"); ok {
			return labels, rest, nil
		}
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, "", errors.New("has labels without an end")
		}
		if value = strings.TrimLeft(value, " \t"); !strings.HasPrefix(value, `"`) {
			return nil, "", fmt.Errorf("has the label %q without quotes around its value", strings.TrimSpace(name))
		}
		var b strings.Builder
		i := 1
		for ; i < len(value) && value[i] != '"'; i++ {
			if value[i] == '\\' && i+1 < len(value) {
				i++
				if value[i] == 'n' {
					b.WriteByte('\n')
					continue
				}
			}
			b.WriteByte(value[i])
		}
		if i >= len(value) {
			return nil, "", errors.New("has a label without an end")
		}
		labels[strings.TrimSpace(name)] = b.String()
		text = value[i+1:]
	}
}

// sum adds up the samples of a page in the text format of Prometheus that the selector names; false where there are none.
func (s *selector) sum(page string) (total int64, seen bool, err error) {
	sum := 0.0
	for line := range strings.Lines(page) {
		rest, ok := strings.CutPrefix(line, s.name)
		if !ok || rest == "" || !strings.ContainsAny(rest[:1], "{ \t") {
			continue // of another metric, whose name may begin in the same way
		}
		var labels map[string]string
		if inside, ok := strings.CutPrefix(strings.TrimLeft(rest, " \t"), "{"); ok {
			if labels, rest, err = readLabels(inside); err != nil {
				return 0, false, fmt.Errorf("the metric %s %w", s.name, err)
			}
		}
		if !s.matches(labels) {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, false, fmt.Errorf("the metric %s has a sample without a value", s.name)
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil || math.IsNaN(v) || v < 0 || v >= 1<<53 {
			return 0, false, fmt.Errorf("the metric %s has a sample of %q, which is no count", s.name, fields[0])
		}
		sum, seen = sum+v, true
	}
	return int64(math.Round(sum)), seen, nil
}

func (s *selector) matches(labels map[string]string) bool {
	for name, value := range s.labels {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// The bounds of one look at a page of metrics.
const (
	scrapeTime  = 2 * time.Second
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
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy: the page is the tracer's own
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
