package tool

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"tare/internal/lib/text"
)

func init() {
	register(Tool{
		Name: "hey", Reads: "its text", Tested: "0.1.3 to 0.1.5",
		Clock: "closed loop, with a limit of the rate where one is set (-q): from when a worker begins a request, " +
			"dialling included, until its answer is read; printed in steps of 0.1 ms",
		parse:  parseHey,
		result: heySummary,
	})
}

var (
	heyCSV      = text.LazyRegexp(`(?m)^response-time,`)
	heyField    = text.LazyRegexp(`^\s+(Success rate|Total|Slowest|Average|Requests/sec|Total data):\s+(.+)$`)
	heySummary  = text.LazyRegexp(`(?m)^Summary:`)
	heyQuantile = text.LazyRegexp(`^\s+([0-9.]+)%%? in ([0-9.]+|NaN) (\S.*)$`)
	heyCount    = text.LazyRegexp(`^\s+\[([0-9]+)\]\s+(.*)$`)
	ohaOnly     = text.LazyRegexp(`(?m)^\s+Success rate:`)
	statusCount = text.LazyRegexp(`^([0-9]+) responses$`)
)

func parseHey(output string, r *Reading) error {
	if heyCSV().MatchString(output) {
		return errors.New("it is one line for each request: leave out -o csv")
	}
	if ohaOnly().MatchString(output) {
		return errors.New("it is the output of oha, whose clock is another: write tool: oha")
	}
	return parseHeyLike(output, r)
}

// heyReader is the state of parsing the output of hey, or of oha, which imitates it.
type heyReader struct {
	r       *Reading
	section string
	answers int64    // answers with any status; sum of all status lines
	failed  int64    // answers with a status other than 2xx and 3xx
	broken  int64    // requests without an answer
	success *float64 // oha only: answers, divided by answers plus broken
	whole   bool     // the section of statuses, the last but one, was found
}

// heyDistributions are the headings of quantiles: first the heading that hey and oha before 0.5.9 print, then the
// heading that oha prints since 0.5.9.
var heyDistributions = []string{"Latency distribution:", "Response time distribution:"}

// heyMost is the maximum number of answers that hey records (maxRes in its requester/report.go).
const heyMost = 1000000

func parseHeyLike(output string, r *Reading) error {
	h := heyReader{r: r}
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\r\n ")
		if line == "" {
			continue
		}
		if !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "\t") {
			h.section = line
			h.whole = h.whole || line == "Status code distribution:"
			if slices.Contains(heyDistributions, line) {
				r.heading(line)
			}
			continue
		}
		if err := h.line(line); err != nil {
			return err
		}
	}
	if r.Rate == nil || !h.whole {
		return errors.New("its summary, or the distribution of status codes at its end, is missing")
	}
	requests, failures := h.answers+h.broken, h.failed+h.broken
	r.Requests, r.Errors = &requests, &failures
	if err := h.agree(); err != nil {
		return err
	}
	if r.Tool == "hey" && h.answers >= heyMost {
		r.ErrorsAtLeast = failures
		r.Requests, r.Errors, r.Mean, r.Max, r.P50, r.P90, r.P99, r.P999 = nil, nil, nil, nil, nil, nil, nil, nil
		r.once("hey keeps the statuses and latencies of its first 1,000,000 answers only, and divides the time of all by " +
			"these: of more answers only its rate is read")
	} else if h.answers == 0 {
		r.Mean, r.Max, r.headings, r.zero = nil, nil, nil, nil // without answers hey prints 0, NaN or nothing
	} else {
		r.missing(h.broken, "requests without an answer")
	}
	return nil
}

func (h *heyReader) line(line string) error {
	switch h.section {
	case heyDistributions[0], heyDistributions[1]:
		if m := heyQuantile().FindStringSubmatch(line); m != nil {
			return h.percent(m[1], m[2]+" "+m[3])
		}
		h.r.strange(h.section, line)
	case "Summary:":
		if m := heyField().FindStringSubmatch(line); m != nil {
			return h.field(m[1], m[2])
		}
	case "Status code distribution:", "Error distribution:":
		if m := heyCount().FindStringSubmatch(line); m != nil {
			return h.count(m[1], m[2])
		}
		if h.section == "Status code distribution:" { // an error may have several lines, but a status has one
			return fmt.Errorf("%q is not a line of its status code distribution", clip(line))
		}
	default:
		if heyCount().MatchString(line) {
			return fmt.Errorf("below %q there are counts, of answers or of failures, and that heading is not known",
				clip(h.section))
		}
		if heyQuantile().MatchString(line) {
			h.r.heading(h.section)
		}
	}
	return nil
}

// agree returns an error if the statuses and errors contradict the success rate.
func (h *heyReader) agree() error {
	if all := h.answers + h.broken; h.success != nil && all > 0 &&
		math.Abs(float64(h.answers)/float64(all)-*h.success) > 0.0001 {
		return fmt.Errorf("its %d answers and %d errors do not match its success rate of %.2f %%", h.answers, h.broken,
			100**h.success)
	}
	return nil
}

func (h *heyReader) field(name, value string) (err error) {
	if strings.Contains(value, "NaN") || strings.Contains(value, "inf") { // printed without answers
		return nil
	}
	if err := h.r.first(name); err != nil {
		return err
	}
	var f float64
	switch name {
	case "Success rate":
		f, err = number(strings.TrimSuffix(value, "%"))
		f /= 100
		h.success = &f
	case "Requests/sec":
		f, err = number(value)
		h.r.Rate = &f
	case "Total data":
		if n, ok := strings.CutSuffix(value, " bytes"); ok {
			value = n + "B"
		}
		f, err = measure(value, binaryUnits)
		h.r.Bytes = bytes(f)
	default:
		if f, err = scaled(value); err != nil {
			break
		}
		switch name {
		case "Total":
			h.r.Seconds = &f
		case "Slowest":
			h.r.latency(&h.r.Part, "", "max", f)
		case "Average":
			h.r.latency(&h.r.Part, "", "mean", f)
		}
	}
	return err
}

// scaled parses a time whose unit may be a multiple: oha prints "0.1 10 sec" (src/timescale.rs).
func scaled(text string) (float64, error) {
	if value, ok := strings.CutSuffix(text, " 10 sec"); ok {
		f, err := number(value)
		return 10 * f, err
	}
	if value, ok := strings.CutSuffix(text, " 10 min"); ok {
		f, err := number(value)
		return 600 * f, err
	}
	return measure(text, timeUnits)
}

func (h *heyReader) percent(percent, value string) error {
	if strings.Contains(value, "NaN") {
		return nil
	}
	if percent == "0" { // hey prints 0 for a quantile for which it had too few requests
		h.r.headings[h.section] = true
		h.r.once("it had too few requests for some of its quantiles, which it prints as 0%")
		return nil
	}
	v, err := scaled(value)
	return h.r.quantile(&h.r.Part, h.section, percent, v, err)
}

// count parses a line of the statuses, "[200] 5 responses", or of the errors, "[5] what happened".
func (h *heyReader) count(first, rest string) error {
	const most = 1 << 60
	if h.section == "Error distribution:" {
		n, err := count(first)
		// Requests that were cut off when the run ended have not failed. oha leaves them out of its success rate, but not out
		// of its request rate.
		if strings.Contains(rest, "aborted due to deadline") {
			h.r.left = n
		} else {
			h.broken += n
		}
		return errors.Join(err, within(h.broken, most), within(n, most))
	}
	m := statusCount().FindStringSubmatch(rest)
	if m == nil {
		return fmt.Errorf("%q is not a number of responses", clip(rest))
	}
	n, err := count(m[1])
	err = errors.Join(err, h.r.first(first))
	h.answers += n
	if len(first) != 3 || first[0] != '2' && first[0] != '3' {
		h.failed += n
	}
	return errors.Join(err, within(h.answers, most))
}

func within(n, most int64) error {
	if n < 0 || n > most {
		return errors.New("it counts more requests than there can be")
	}
	return nil
}
