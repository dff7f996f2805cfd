package tool

import (
	"errors"
	"fmt"
	"strings"
)

func init() {
	register(Tool{
		Name: "oha", Reads: "its text (--no-tui) or JSON (--output-format json)",
		Tested: "0.5.9 to 1.15.0",
		Clock: "closed loop, with a limit of the rate where one is set (-q): from when a request is sent until its " +
			"answer is read; from when it was due instead with --latency-correction",
		parse:  parseOha,
		result: heySummary,
	})
}

// parseOha parses oha's text, which imitates hey's, or its JSON (schema.json in oha's repository).
func parseOha(output string, r *Reading) error {
	if !heySummary().MatchString(output) && strings.Contains(output, "{") {
		return ohaJSON(output, r)
	}
	if !ohaOnly().MatchString(output) {
		return errors.New("it has no \"Success rate\" in its summary, as that of hey: if it is hey's, write tool: hey")
	}
	return parseHeyLike(output, r)
}

// ohaResult is the part of oha's JSON that Tare uses.
type ohaResult struct {
	Summary *struct {
		Total   float64  `json:"total"`
		Slowest *float64 `json:"slowest"`
		Average *float64 `json:"average"`
		Rate    *float64 `json:"requestsPerSec"`
		Data    *float64 `json:"totalData"`
		Success *float64 `json:"successRate"`
	} `json:"summary"`
	Percentiles map[string]*float64 `json:"latencyPercentiles"`
	Statuses    map[string]int64    `json:"statusCodeDistribution"`
	Errors      map[string]int64    `json:"errorDistribution"`
}

const ohaPercentiles = "latencyPercentiles"

func ohaJSON(output string, r *Reading) error {
	o, err := object(output, func(o *ohaResult) bool {
		return o.Summary != nil && o.Summary.Rate != nil && o.Statuses != nil && o.Errors != nil
	}, "its JSON has no summary.requestsPerSec, no statusCodeDistribution or no errorDistribution")
	if err != nil {
		return err
	}
	s := o.Summary
	h := heyReader{r: r, success: s.Success}
	for status, n := range o.Statuses {
		h.section = "Status code distribution:"
		if err := h.count(status, fmt.Sprintf("%d responses", n)); err != nil {
			return err
		}
	}
	for what, n := range o.Errors {
		h.section = "Error distribution:"
		if err := h.count(fmt.Sprint(n), what); err != nil {
			return err
		}
	}
	requests, failures := h.answers+h.broken, h.failed+h.broken
	r.Requests, r.Errors, r.Rate, r.Seconds = &requests, &failures, s.Rate, &s.Total
	if err := h.agree(); err != nil {
		return err
	}
	if s.Data != nil {
		r.Bytes = bytes(*s.Data)
	}
	if h.answers == 0 {
		return nil
	}
	r.missing(h.broken, "requests without an answer")
	if len(o.Percentiles) > 0 {
		r.heading(ohaPercentiles)
	}
	for name, v := range map[string]*float64{"mean": s.Average, "max": s.Slowest, "p50": o.Percentiles["p50"],
		"p90": o.Percentiles["p90"], "p99": o.Percentiles["p99"], "p99.9": o.Percentiles["p99.9"]} {
		if v == nil {
			continue
		}
		heading := ""
		if strings.HasPrefix(name, "p") {
			heading = ohaPercentiles
		}
		r.latency(&r.Part, heading, name, *v)
	}
	return nil
}
