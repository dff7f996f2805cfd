package tool

import (
	"errors"
	"strings"

	"tare/internal/lib/text"
)

func init() {
	register(Tool{
		Name: "ab", Reads: "its text", Tested: "2.3 (Apache 2.4.62, 2.4.69 and 2.4.71)",
		Clock: "closed loop: from when a connection is begun until its answer is read; its quantiles are whole " +
			"milliseconds, its mean is concurrency x time / requests",
		parse:  parseAb,
		result: abResult,
	})
}

var (
	abResult   = text.LazyRegexp(`(?m)^Complete requests:`)
	abField    = text.LazyRegexp(`^([A-Z][A-Za-z0-9 -]+):\s+([0-9.]+)( .*)?$`)
	abQuantile = text.LazyRegexp(`^ +([0-9]+)% +([0-9]+)( \(longest request\))?$`)
	abLength   = text.LazyRegexp(`^ +\(.*Length: ([0-9]+)[,)]`)
)

// parseAb reads the text of ab.
func parseAb(output string, r *Reading) error {
	var failed, status int64
	whole := false
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n ")
		var err error
		if m := abField().FindStringSubmatch(line); m != nil {
			err = abTake(r, m[1], m[2], m[3], &failed, &status)
		} else if m := abQuantile().FindStringSubmatch(line); m != nil {
			err = abPercent(r, m[1], m[2])
			whole = whole || m[1] == "100"
		} else if m := abLength().FindStringSubmatch(line); m != nil && m[1] != "0" {
			r.Warnings = append(r.Warnings, m[1]+" of the errors are answers of another length than the first, "+
				"which ab counts as failed unless it is given -l")
		}
		if err != nil {
			return err
		}
	}
	if r.Requests == nil || r.Rate == nil {
		return errors.New("it has no \"Complete requests\" or no \"Requests per second\"")
	}
	if *r.Requests > 1 && !whole { // of a single request it gives no distribution
		return errors.New("its distribution at the end is missing")
	}
	errs := failed + status
	r.Errors = &errs
	return within(errs, 1<<61)
}

func abTake(r *Reading, name, value, rest string, failed, status *int64) (err error) {
	var f float64
	var n int64
	switch name {
	case "Time taken for tests":
		f, err = number(value)
		r.Seconds = &f
	case "Complete requests":
		n, err = count(value)
		r.Requests = &n
	case "Failed requests":
		*failed, err = count(value)
	case "Non-2xx responses":
		*status, err = count(value)
	case "Total transferred":
		n, err = count(value)
		r.Bytes = &n
	case "Requests per second":
		f, err = number(value)
		r.Rate = &f
	case "Time per request":
		if strings.TrimSpace(rest) == "[ms] (mean)" {
			f, err = number(value)
			r.Mean = positive(f / 1e3)
		}
	}
	return err
}

func abPercent(r *Reading, percent, value string) error {
	p, err := number(percent)
	if err != nil {
		return err
	}
	ms, err := number(value)
	if err != nil {
		return err
	}
	field := r.quantile(p)
	if field == nil {
		return nil
	}
	if *field = positive(ms / 1e3); ms == 0 {
		r.Warnings = append(r.Warnings, "p"+percent+" is below 0.5 ms, which ab rounds to 0")
	}
	return nil
}
