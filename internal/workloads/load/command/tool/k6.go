package tool

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"tare/internal/lib/text"
)

func init() {
	register(Tool{
		Name: "k6", Reads: "its end-of-test summary, or the JSON of --summary-export",
		Tested: "0.33 to 1.8.1; 0.26, by its documentation",
		Clock: "from when a request is sent until its answer is read (http_req_duration), without the time to " +
			"connect; the executor of the script decides whether the loop is open or closed",
		parse:  parseK6,
		result: k6Result,
	})
}

var (
	k6Result = text.LazyRegexp(`(?m)^ *█ TOTAL RESULTS`)
	k6Block  = text.LazyRegexp(`^ *█ `)
	k6Metric = text.LazyRegexp(`^ *(?:[✓✗] )?(http_req_duration|http_req_failed|http_reqs|data_received|dropped_iterations)\.*: +(.*)$`)
	k6Trend  = text.LazyRegexp(`^([^=]+)=(\S+)$`)
	k6Unread = text.LazyRegexp(`^(min|count|p\([0-9.]+\))$`)
	k6Failed = text.LazyRegexp(`^([0-9.]+)% +(?:✓ ([0-9]+) +✗ ([0-9]+)|([0-9]+) out of ([0-9]+))$`)
	k6Names  = map[string]string{"avg": "mean", "med": "p50", "max": "max", "p(50)": "p50", "p(90)": "p90", "p(99)": "p99",
		"p(99.9)": "p99.9"}
)

// parseK6 parses k6's summary at the end of a test: the text of version 0 or 1, or the JSON of --summary-export or
// handleSummary.
func parseK6(output string, r *Reading) error {
	// Version 1 can repeat the totals for each group and scenario; only the total results count.
	blocks := k6Result().MatchString(output)
	total := !blocks
	seen := map[string]bool{}
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n ")
		if blocks && k6Block().MatchString(line) {
			total = k6Result().MatchString(line)
		}
		m := k6Metric().FindStringSubmatch(line)
		if m == nil || !total {
			continue
		}
		if seen[m[1]] {
			return errSeveral
		}
		seen[m[1]] = true
		if err := k6Take(r, m[1], m[2]); err != nil {
			return err
		}
	}
	if r.Requests == nil && strings.Contains(output, "{") && !seen["http_req_duration"] {
		return k6JSON(output, r)
	}
	if r.Requests == nil {
		return errors.New("its summary has no http_reqs: the test made no HTTP request, or the summary is missing")
	}
	return nil
}

func k6Take(r *Reading, metric, value string) error {
	switch metric {
	case "http_req_duration":
		r.heading(metric)
		for _, field := range strings.Fields(value) {
			m := k6Trend().FindStringSubmatch(field)
			if m == nil {
				return fmt.Errorf("its %s has %q, which is not a statistic with its value", metric, clip(field))
			}
			name, known := k6Names[m[1]]
			if !known {
				if !k6Unread().MatchString(m[1]) {
					r.strange(metric, field)
				}
				continue
			}
			v, err := duration(m[2])
			if err != nil {
				return err
			}
			r.latency(&r.Part, metric, name, v)
		}
	case "http_req_failed":
		m := k6Failed().FindStringSubmatch(value)
		if m == nil {
			return errors.New("its http_req_failed has no count")
		}
		share, err := number(m[1])
		n, err2 := count(m[2] + m[4]) // one of the two is empty
		rest, err3 := count(m[3] + m[5])
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		all := float64(rest)
		if m[2] != "" {
			all += float64(n)
		}
		if r.Errors = &n; math.Abs(100*float64(n)-share*all) > 0.02*all {
			return fmt.Errorf("its %d failures of %.0f requests do not match its %g %%", n, all, share)
		}
	case "http_reqs":
		fields := strings.Fields(value)
		if len(fields) != 2 {
			return errors.New("its http_reqs are not a count and a rate")
		}
		n, err := count(fields[0])
		rate, err2 := number(strings.TrimSuffix(fields[1], "/s"))
		r.Requests, r.Rate = &n, &rate
		return errors.Join(err, err2)
	case "dropped_iterations":
		first, _, _ := strings.Cut(value, " ")
		n, err := count(first)
		k6Dropped(r, n)
		return err
	case "data_received":
		fields := strings.Fields(value)
		if len(fields) < 2 {
			return errors.New("its data_received has no size")
		}
		b, err := measure(fields[0]+fields[1], decimalUnits)
		r.Bytes = bytes(b)
		return err
	}
	return nil
}

// k6Dropped warns about iterations that an executor's rate required, but for which no virtual user was free.
func k6Dropped(r *Reading, n int64) {
	if n > 0 {
		r.once(fmt.Sprintf("it dropped %d iterations, for which it had no virtual user: it did not reach its rate, and what "+
			"they would have waited is missing from its latencies", n))
	}
}

// k6Values holds the numbers of one metric in k6's JSON: directly with --summary-export, and in "values" with
// handleSummary.
type k6Values map[string]any

func (v k6Values) number(name string) (float64, bool) {
	if inner, ok := v["values"].(map[string]any); ok {
		v = inner
	}
	f, ok := v[name].(float64)
	return f, ok
}

// k6JSONResult is the part of k6's JSON that Tare uses.
type k6JSONResult struct {
	Metrics map[string]k6Values `json:"metrics"`
	State   struct {
		Milliseconds float64 `json:"testRunDurationMs"`
	} `json:"state"`
}

func (k *k6JSONResult) requests() (n, rate float64, ok bool) {
	n, counted := k.Metrics["http_reqs"].number("count")
	rate, rated := k.Metrics["http_reqs"].number("rate")
	return n, rate, counted && rated
}

func k6JSON(output string, r *Reading) error {
	k, err := object(output, func(k *k6JSONResult) bool { _, _, ok := k.requests(); return ok },
		"its JSON has no metrics.http_reqs with a count and a rate")
	if err != nil {
		return err
	}
	n, rate, _ := k.requests()
	r.Requests, r.Rate = bytes(n), &rate
	if k.State.Milliseconds > 0 {
		s := k.State.Milliseconds / 1e3
		r.Seconds = &s
	}
	// http_req_failed is a rate in which "passes" counts the requests that failed.
	if failed, ok := k.Metrics["http_req_failed"].number("passes"); ok {
		r.Errors = bytes(failed)
	}
	if b, ok := k.Metrics["data_received"].number("count"); ok {
		r.Bytes = bytes(b)
	}
	if dropped, ok := k.Metrics["dropped_iterations"].number("count"); ok {
		if n := bytes(dropped); n != nil {
			k6Dropped(r, *n)
		}
	}
	const trend = "http_req_duration"
	if len(k.Metrics[trend]) > 0 {
		r.heading(trend)
	}
	for from, to := range k6Names {
		if ms, ok := k.Metrics[trend].number(from); ok && from != "p(50)" {
			r.latency(&r.Part, trend, to, ms/1e3)
		}
	}
	return nil
}
