package tool

import (
	"fmt"
	"strconv"
)

func init() {
	register(Tool{
		Name: "fortio", Reads: "the JSON that fortio load prints with -json -",
		Tested: "1.3.1 to 1.68.2",
		Clock: "paced closed loop: from when a request is sent until its answer is there; time that a request " +
			"waits for a busy thread is not in it; quantiles are interpolated within the buckets of its " +
			"histogram",
		parse: parseFortio,
	})
}

// fortioHistogram is the part of a histogram in fortio's JSON that Tare uses (HistogramData in fortio's stats package).
type fortioHistogram struct {
	Count       *int64
	Max         float64
	Sum         *float64
	Avg         float64
	Percentiles []struct{ Percentile, Value float64 }
}

// fortioResult is the part of fortio's JSON that Tare uses.
type fortioResult struct {
	Version           string
	ActualQPS         *float64
	ActualDuration    int64 // ns
	DurationHistogram *fortioHistogram
	Errors            *fortioHistogram `json:"ErrorsDurationHistogram"` // since 1.22
	Codes             map[string]int64 `json:"RetCodes"`
	Sizes             *fortioHistogram
}

// fortioFailed counts responses with an error status, if the codes are those of HTTP. fortio counts 2xx and 418 as
// success, but some of its versions also count 418 as failed; teapots is the number of responses with 418. The code -1
// means a request without a response (codeIsOK in its fhttp package).
func fortioFailed(codes map[string]int64) (failed, teapots int64, ok bool) {
	for code, n := range codes {
		status, err := strconv.Atoi(code)
		switch {
		case err != nil || n < 0 || n > 1<<53:
			return 0, 0, false
		case status == 418:
			teapots += n
		case status < 200 || status > 299:
			failed += n
		}
	}
	return failed, teapots, len(codes) > 0
}

// parseFortio parses the JSON of fortio load: HTTPRunnerResults in fortio's fhttp package, or the similar results for
// gRPC, TCP and UDP, which have the same fields except for the sizes.
func parseFortio(output string, r *Reading) error {
	f, err := object(output, func(f *fortioResult) bool {
		return f.DurationHistogram != nil && f.DurationHistogram.Count != nil && f.ActualQPS != nil
	}, "its JSON has no DurationHistogram.Count or no ActualQPS")
	if err != nil {
		return fmt.Errorf("%w; run it with -json - and -quiet", err)
	}
	h, s := f.DurationHistogram, float64(f.ActualDuration)/1e9
	r.Version = clip(f.Version)
	r.Requests, r.Rate, r.Seconds = h.Count, f.ActualQPS, &s
	failed, teapots, byCode := fortioFailed(f.Codes)
	if f.Errors != nil {
		if r.Errors = f.Errors.Count; r.Errors != nil && byCode && *r.Errors != failed+teapots {
			if err := differ(*r.Errors, failed, "by the codes of its answers"); err != nil {
				return err
			}
		}
	} else if byCode {
		r.Errors = &failed
	}
	if f.Sizes != nil && f.Sizes.Sum != nil {
		r.Bytes = bytes(*f.Sizes.Sum)
	}
	if *h.Count == 0 {
		return nil
	}
	r.latency(&r.Part, "", "mean", h.Avg)
	r.latency(&r.Part, "", "max", h.Max)
	for _, p := range h.Percentiles {
		if p.Percentile < 100 {
			r.latency(&r.Part, "Percentiles", fmt.Sprintf("p%g", p.Percentile), p.Value)
		}
	}
	return nil
}
