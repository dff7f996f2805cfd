package tool

import (
	"errors"
	"fmt"
	"strings"

	"tare/internal/lib/text"
)

func init() {
	register(Tool{
		Name: "ab", Reads: "its text", Tested: "2.3 (Apache 2.4.62 to 2.4.71)",
		Clock: "closed loop: from when a connection is begun until its answer is read; its quantiles are whole " +
			"milliseconds, its mean is concurrency x time / requests",
		parse:  parseAb,
		result: abResult,
		paced:  true,
	})
}

var (
	abResult   = text.LazyRegexp(`(?m)^Complete requests:`)
	abField    = text.LazyRegexp(`^([A-Z][A-Za-z0-9 -]+):\s+(\S+)(?: (.*))?$`)
	abQuantile = text.LazyRegexp(`^ +([0-9]+)% +(\S+)( \(longest request\))?$`)
	abKinds    = text.LazyRegexp(`^ +\(Connect: ([0-9]+), Receive: ([0-9]+), Length: ([0-9]+), Exceptions: ([0-9]+)\)$`)

	// abUnits are the units that must follow the values.
	abUnits = map[string]string{"Time taken for tests": "seconds", "Complete requests": "", "Failed requests": "",
		"Non-2xx responses": "", "Write errors": "", "Total transferred": "bytes",
		"Requests per second": "[#/sec] (mean)", "Time per request": "[ms] (mean)"}
)

func parseAb(output string, r *Reading) error {
	// kinds counts, in this order: all failed requests; those of the kinds connect, receive, length and exceptions;
	// answers other than 2xx; and write errors.
	kinds := make([]int64, 7)
	whole := false
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n ")
		var err error
		if m := abField().FindStringSubmatch(line); m != nil {
			err = abTake(r, m[1], m[2], m[3], kinds)
		} else if m := abQuantile().FindStringSubmatch(line); m != nil {
			ms, wrong := number(m[2])
			err = r.quantile(&r.Part, abDistribution, m[1], ms/1e3, wrong)
			whole = whole || m[1] == "100"
		} else if m := abKinds().FindStringSubmatch(line); m != nil {
			for i, of := range m[1:] {
				err = errors.Join(err, addCounts(&kinds[1+i], of))
			}
			err = errors.Join(err, r.first("kinds"))
			if all := sum(kinds[1:5], func(n int64) *int64 { return &n }); all != nil {
				err = errors.Join(err, differ(kinds[0], *all, "by their kinds"))
			}
			kinds[0] = 0
		} else if strings.HasPrefix(line, "   (") {
			err = fmt.Errorf("%q are unknown kinds of failed requests", clip(line))
		}
		if err != nil {
			return err
		}
	}
	if r.Requests == nil || r.Rate == nil {
		return errors.New("it has no \"Complete requests\" or no \"Requests per second\" in text: leave out -w")
	}
	if *r.Requests > 1 && !whole { // for a single request, ab prints no distribution
		return errors.New("its distribution at the end is missing: it was cut off, or leave out -d")
	}
	if kinds[3] > 0 {
		r.once(fmt.Sprintf("%d of the errors are answers of another length than the first, which ab counts as failed "+
			"unless it is given -l", kinds[3]))
	}
	return r.either(0, kinds...)
}

const abDistribution = "Percentage of the requests served within a certain time (ms)"

func abTake(r *Reading, name, value, rest string, kinds []int64) (err error) {
	var f float64
	var n int64
	unit, known := abUnits[name]
	if !known {
		if value[0] >= '0' && value[0] <= '9' {
			return failures(name + ": " + value)
		}
		return nil
	}
	if rest == "[ms] (mean, across all concurrent requests)" {
		return nil
	}
	if rest != unit {
		return fmt.Errorf("its %q has %q after the figure, not %q", name, clip(rest), unit)
	}
	if err := r.first(name); err != nil {
		return err
	}
	switch name {
	case "Time taken for tests":
		f, err = number(value)
		r.Seconds = &f
	case "Complete requests":
		n, err = count(value)
		r.Requests = &n
	case "Failed requests":
		kinds[0], err = count(value)
	case "Non-2xx responses":
		kinds[5], err = count(value)
	case "Write errors": // ab does not count these as failed (write_request in its ab.c)
		kinds[6], err = count(value)
	case "Total transferred":
		n, err = count(value)
		r.Bytes = &n
	case "Requests per second":
		f, err = number(value)
		r.Rate = &f
	case "Time per request":
		f, err = number(value)
		r.latency(&r.Part, "", "mean", f/1e3)
	}
	return err
}
