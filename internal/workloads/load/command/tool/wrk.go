package tool

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tare/internal/lib/text"
)

func init() {
	register(Tool{
		Name: "wrk", Reads: "its text; --latency adds quantiles", Tested: "4.0.2, 4.1.0 and 4.2.0",
		Clock: "closed loop: from when a request is sent until its answer is there; while a connection waits, the " +
			"requests that it would have sent are missing from the distribution",
		parse:  parseWrk,
		result: wrkRate,
	})
	register(Tool{
		Name: "wrk2", Reads: "its text; --latency adds quantiles", Tested: "44a94c1",
		Clock: "open loop at a constant rate: from when a request was due by the schedule until its answer is " +
			"there; it forgets what it saw in its calibration, the first 10 s of a longer run",
		parse:  parseWrk,
		result: wrkRate,
		fork:   &fork{of: "wrk", byArgs: hasRate, byOutput: isWrk2},
	})
}

// isWrk2 distinguishes the output of wrk2, a fork of wrk, from that of wrk: wrk2 calibrates its threads, and prints an
// HDR histogram. A short run without --latency prints neither; then only the command line shows that it is wrk2
// (Detect).
func isWrk2(output string) bool {
	return strings.Contains(output, "Thread calibration:") || strings.Contains(output, "(HdrHistogram - ")
}

// hasRate reports whether arguments set a rate. Only wrk2 has this option.
func hasRate(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(a, "-R") || a == "--rate" || strings.HasPrefix(a, "--rate=")
	})
}

var (
	wrkThread   = text.LazyRegexp(`^ +Latency +(\S+) +\S+ +(\S+) +\S+%$`)
	wrkOwn      = text.LazyRegexp(`^  [A-Z]`) // indented like wrk's own totals, unlike most output of scripts
	wrkQuantile = text.LazyRegexp(`^ *([0-9.]+)% +(\S+)$`)
	wrkTotal    = text.LazyRegexp(`^ +([0-9]+) requests in (\S+), (\S+) read$`)
	wrkErrors   = text.LazyRegexp(`^ +Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)$`)
	wrkStatus   = text.LazyRegexp(`^ +Non-2xx or 3xx responses: ([0-9]+)$`)
	wrkRate     = text.LazyRegexp(`(?m)^Requests/sec: +(\S+)\s*$`)
)

// wrkDistribution is the heading of quantiles, to which wrk2 appends how it counts.
const wrkDistribution = "Latency Distribution"

// parseWrk parses the text of wrk and of wrk2.
func parseWrk(output string, r *Reading) error {
	w := wrkReader{r: r}
	for line := range strings.Lines(output) {
		if err := w.line(strings.TrimRight(line, "\r\n ")); err != nil {
			return err
		}
	}
	if r.Requests == nil || r.Rate == nil {
		return errors.New("its last lines are missing: there is no \"N requests in\" or no \"Requests/sec\"")
	}
	if r.Tool == "wrk" { // see stats_record in its stats.c
		r.missing(w.late, "answers that took longer than its timeout")
		return r.either(w.broken, w.late, w.status)
	}
	err := r.either(w.broken, w.status)
	if w.late > 0 { // see check_timeouts in its wrk.c
		r.Errors, r.ErrorsAtLeast = nil, w.broken+w.status
		r.once(fmt.Sprintf("its %d timeouts are no number of requests: every 2 s it counts each connection that has sent "+
			"nothing for longer than its timeout, even an idle one", w.late))
	}
	return err
}

// wrkReader is the state of parsing wrk's text line by line.
type wrkReader struct {
	r            *Reading
	broken       int64 // requests that failed by socket errors, which wrk does not count as requests
	late, status int64 // answered requests: late, or with an error status, or both
	quantiles    bool  // inside the distribution that is used
	uncorrected  bool  // inside or after the distribution that is not used
}

func (w *wrkReader) line(line string) error {
	if strings.HasPrefix(line, "  "+wrkDistribution) {
		// wrk2 --u_latency prints a second distribution, of the times since the requests were sent.
		w.uncorrected = strings.Contains(line, "Uncorrected")
		if w.quantiles = !w.uncorrected; w.quantiles {
			w.r.heading(wrkDistribution)
		}
		return nil
	}
	if w.quantiles {
		if m := wrkQuantile().FindStringSubmatch(line); m != nil {
			v, err := duration(m[2])
			return w.r.quantile(&w.r.Part, wrkDistribution, m[1], v, err)
		}
		if w.quantiles = strings.Contains(line, "%"); w.quantiles {
			w.r.strange(wrkDistribution, line)
			return nil
		}
	}
	if !w.uncorrected && wrkQuantile().MatchString(line) {
		w.r.strange("no heading", line)
		return nil
	}
	if m := wrkThread().FindStringSubmatch(line); m != nil && w.r.Max == nil {
		return w.threads(m[1], m[2])
	}
	if m := wrkTotal().FindStringSubmatch(line); m != nil {
		return w.total(m)
	}
	if m := wrkErrors().FindStringSubmatch(line); m != nil {
		return errors.Join(w.r.first("socket errors"), addCounts(&w.broken, m[1:4]...), addCounts(&w.late, m[4]))
	}
	if m := wrkStatus().FindStringSubmatch(line); m != nil {
		return errors.Join(w.r.first("statuses"), addCounts(&w.status, m[1]))
	}
	if m := wrkRate().FindStringSubmatch(line); m != nil {
		rate, err := number(m[1])
		w.r.Rate = &rate
		return err
	}
	if strings.HasPrefix(strings.TrimSpace(line), "Latency ") && w.r.Max == nil {
		w.r.strange("Thread Stats", line)
	} else if wrkOwn().MatchString(line) {
		return failures(line)
	}
	return nil
}

// threads parses the line of the threads' latency, which has -nan if there were no requests.
func (w *wrkReader) threads(mean, largest string) error {
	if strings.Contains(mean, "nan") {
		return nil
	}
	m, err := duration(mean)
	if err != nil {
		return err
	}
	x, err := duration(largest)
	if err != nil {
		return err
	}
	w.r.latency(&w.r.Part, "", "mean", m)
	w.r.latency(&w.r.Part, "", "max", x)
	return nil
}

func (w *wrkReader) total(m []string) error {
	if err := w.r.first("requests"); err != nil {
		return err
	}
	n, err := count(m[1])
	if err != nil {
		return err
	}
	s, err := duration(m[2])
	if err != nil {
		return err
	}
	b, err := measure(m[3], binaryUnits)
	if err != nil {
		return err
	}
	w.r.Requests, w.r.Seconds, w.r.Bytes = &n, &s, bytes(b)
	return nil
}

// addCounts adds counts to a sum.
func addCounts(sum *int64, counts ...string) error {
	for _, c := range counts {
		n, err := count(c)
		if err != nil {
			return err
		}
		if *sum += n; *sum < 0 {
			return errors.New("it counts more errors than there can be")
		}
	}
	return nil
}
