// Package tool parses the output of independent load generators such as wrk and fio. Each tool has its own clock, which
// starts and stops when the tool chooses, so its numbers have their own meaning. A Reading therefore names the tool,
// and says what its clock measures. It is reported beside Tare's measurements from outside, and never replaces them.
//
// Values that a tool does not print are absent from a Reading, never 0: a quantile that the tool leaves out, or one
// that it rounds to 0 because its unit is too coarse. Times are in seconds and sizes in bytes, with the digits that the
// tool printed.
package tool

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/lib/text"
)

// MaxBytes is the maximum length of an output that Parse accepts. The summary of any of these tools is a few kilobytes.
const MaxBytes = 4 << 20

// maxParts is the maximum number of operations or jobs in one output, and maxStrange the maximum number of warnings
// about unknown lines.
const (
	maxParts   = 1000
	maxStrange = 20
)

// Reading is the output of one run of a tool.
type Reading struct {
	Tool     string   `json:"tool"`              // its name, one of Names
	Version  string   `json:"version,omitempty"` // if its output has one
	Clock    string   `json:"clock"`             // what its clock measures, in a sentence
	Part              // the result of all parts together
	Parts    []Part   `json:"parts,omitempty"`    // if the tool runs several operations or jobs
	Warnings []string `json:"warnings,omitempty"` // what a reader of the numbers must know

	// ErrorsAtLeast is a lower bound on the number of failed requests. It is set if Errors is nil because the counts of
	// failures overlap or cover only some of the requests.
	ErrorsAtLeast int64 `json:"errors_at_least,omitempty"`

	headings map[string]bool // whether a quantile below a heading was parsed, by heading
	zero     []string        // names of values that the tool printed as 0
	both     [][2]string     // part and name of latencies that the tool printed with different values
	left     int64           // requests that count in the tool's rate but not in Requests
	seen     map[string]bool // names of values that may occur only once and have occurred
}

// Part is the result of one operation, or of all of them together. A field is nil if the tool does not print it.
type Part struct {
	Name     string   `json:"name,omitempty"`         // name of the operation or job: SET, "job read"
	Requests *int64   `json:"requests,omitempty"`     // completed requests, including failed ones if the tool counts those
	Errors   *int64   `json:"errors,omitempty"`       // requests that failed, or got a response with an error status
	Beside   int64    `json:"beside,omitempty"`       // the part of the failed requests that is not in Requests
	Seconds  *float64 `json:"seconds,omitempty"`      // how long it ran
	Rate     *float64 `json:"rate,omitempty"`         // requests per second
	Bytes    *int64   `json:"bytes,omitempty"`        // transferred
	Mean     *float64 `json:"mean_seconds,omitempty"` // mean latency, by the tool's clock, like the latencies below
	P50      *float64 `json:"p50_seconds,omitempty"`
	P90      *float64 `json:"p90_seconds,omitempty"`
	P99      *float64 `json:"p99_seconds,omitempty"`
	P999     *float64 `json:"p999_seconds,omitempty"`
	Max      *float64 `json:"max_seconds,omitempty"`
}

// Label names the clock of the numbers, as in "by wrk's own clock".
func (r Reading) Label() string { return "by " + r.Tool + "'s own clock" }

// Tool is a load generator whose output this package can parse. A file for each tool registers it.
type Tool struct {
	Name   string // the name of its program
	Reads  string // which of its output formats the package can parse
	Tested string // versions whose output is in the tests, real or written from the documentation
	Clock  string // what its clock measures

	parse func(output string, r *Reading) error

	// result matches a text that one run prints at most once. If it is nil, parse detects the output of several runs
	// itself.
	result func() *regexp.Regexp

	// grain is the relative amount by which quantiles are rounded up, for example by a histogram.
	grain float64

	// paced means that the tool derives the mean from the rate, not from latencies, so that it can exceed the maximum.
	paced bool

	// fork is set for a tool whose program may have the same name as another tool's.
	fork *fork
}

// fork describes how to distinguish a tool from the tool with the same program name.
type fork struct {
	of       string // the name of the other tool, and of the program
	byArgs   func(args []string) bool
	byOutput func(output string) bool
}

// tools is the registry, sorted by name.
var tools []Tool

// register adds a tool. Only init functions may call it. It panics if the name is taken or a field is missing.
func register(t Tool) {
	at, taken := find(t.Name)
	if taken || t.Name == "" || t.Reads == "" || t.Tested == "" || t.Clock == "" || t.parse == nil {
		panic("tool: cannot register " + t.Name)
	}
	tools = slices.Insert(tools, at, t)
}

func find(name string) (at int, is bool) {
	return slices.BinarySearchFunc(tools, name, func(t Tool, name string) int { return cmp.Compare(t.Name, name) })
}

// Names returns the names of all tools.
func Names() []string {
	return lists.Map(tools, func(t Tool) string { return t.Name })
}

// forkOf resolves a program name that two tools share. It returns the name of the tool whose fork has that name and for
// which the given function returns true, or the given name if there is none.
func forkOf(name string, is func(*fork) bool) string {
	for _, t := range tools {
		if t.fork != nil && t.fork.of == name && is(t.fork) {
			return t.Name
		}
	}
	return name
}

// wrappers are programs whose arguments end with the command that they run.
var wrappers = []string{
	"chrt", "env", "ionice", "nice", "nohup", "numactl", "setarch", "setpriv", "stdbuf", "sudo", "taskset", "time",
	"timeout",
}

// Detect returns the tool that a command line runs, by the name of its program, or "" if the program is unknown. It
// skips wrappers such as taskset.
func Detect(argv []string) string {
	for i, arg := range argv {
		name := filepath.Base(arg)
		if _, is := find(name); is {
			return forkOf(name, func(f *fork) bool { return f.byArgs(argv[i+1:]) })
		}
		if i == 0 && !slices.Contains(wrappers, name) {
			return ""
		}
	}
	return ""
}

// Parse parses the standard output of a tool, whose name is as returned by Detect. If the output is not the tool's, or
// is incomplete or invalid, the error says what is missing.
func Parse(name string, output []byte) (Reading, error) {
	i, is := find(forkOf(name, func(f *fork) bool { return f.byOutput(string(output)) }))
	if !is {
		return Reading{}, fmt.Errorf("the output of %q cannot be read, only that of %s", clip(name),
			strings.Join(Names(), ", "))
	}
	t := tools[i]
	r := Reading{Tool: t.Name, Clock: t.Clock}
	err := fmt.Errorf("it is longer than %d bytes", MaxBytes)
	if len(output) <= MaxBytes {
		plain := strings.TrimPrefix(string(output), "\ufeff") // the file may have been written by an editor or PowerShell
		err = t.read(colours().ReplaceAllString(plain, ""), &r)
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return Reading{}, fmt.Errorf("reading what %s printed (%s; tested with %s): %w", t.Name, t.Reads, t.Tested, err)
	}
	r.warn(&t)
	return r, nil
}

// colours matches terminal escapes (CSI sequences of ECMA-48), including those that erase a line. Some tools, such as
// oha 1.4, print these even to files.
var colours = text.LazyRegexp("\x1b\\[[0-?]*[ -/]*[@-~]")

func (t *Tool) read(output string, r *Reading) error {
	switch {
	case strings.TrimSpace(output) == "":
		return errors.New("it printed nothing")
	case t.result != nil && len(t.result().FindAllStringIndex(output, 2)) > 1:
		return errSeveral
	}
	return t.parse(output, r)
}

// errSeveral means that an output has the results of several runs, none of which stands for all.
var errSeveral = errors.New("it has the results of more than one run: print those of one, the measured one, " +
	"and send those of others elsewhere, such as to /dev/null")

// heading records that the output has a heading of quantiles.
func (r *Reading) heading(name string) {
	if r.headings == nil {
		r.headings = map[string]bool{}
	}
	if !r.headings[name] {
		r.headings[name] = false // the heading is present, but no quantile below it has been parsed yet
	}
}

// latency sets a latency of a part, in seconds, by its name and the heading above it ("" for none). A value of 0 means
// that the latency is below the tool's resolution, or that there were no requests.
func (r *Reading) latency(p *Part, heading, name string, seconds float64) {
	r.heading(heading)
	field := p.latency(name)
	if field == nil {
		return
	}
	if old := *field; old != nil && math.Abs(*old-seconds) > 0.05*max(*old, seconds) {
		r.both = append(r.both, [2]string{p.Name, name})
	}
	if r.headings[heading] = true; seconds != 0 { // check refuses negative values
		*field = &seconds
	} else {
		r.zero = append(r.zero, strings.TrimSpace(p.Name+" "+name))
	}
}

// quantile sets a quantile of a part. The argument percent is its name as printed, and value is in seconds.
func (r *Reading) quantile(p *Part, heading, percent string, value float64, err error) error {
	q, wrong := number(percent)
	if err = errors.Join(wrong, err); err == nil {
		r.latency(p, heading, fmt.Sprintf("p%g", q), value)
	}
	return err
}

// once adds a warning, unless the reading already has it.
func (r *Reading) once(warning string) {
	if !slices.Contains(r.Warnings, warning) {
		r.Warnings = append(r.Warnings, warning)
	}
}

// strange warns about an unknown line below a known heading.
func (r *Reading) strange(heading, line string) {
	if len(r.Warnings) < maxStrange {
		r.once(fmt.Sprintf("below %q the line %q is not known, so what it says is not read", heading,
			clip(strings.TrimSpace(line))))
	}
}

// first returns an error if a value that may occur only once in an output occurs again.
func (r *Reading) first(name string) error {
	if r.seen[name] {
		return errSeveral
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[name] = true
	return nil
}

// counted matches lines that appear to end in a number of failures.
var counted = text.LazyRegexp(`(?i)(\b(errors?|fail\w*|timeouts?|timed out|refused|dropped|non-?\dxx)\b|\bresponses:).*[0-9]`)

// differ returns an error if an output has a number of failures twice with different values.
func differ(one, other int64, where string) error {
	if one != other {
		return fmt.Errorf("it counts %d failures, and %d %s", one, other, where)
	}
	return nil
}

// failures returns an error if an unknown line may count failures, because the reading would then have too few.
func failures(line string) error {
	if counted().MatchString(line) {
		return fmt.Errorf("the line %q is not known, and may count failures", clip(strings.TrimSpace(line)))
	}
	return nil
}

// missing warns about requests that the tool leaves out of its latencies.
func (r *Reading) missing(n int64, which string) {
	if n > 0 {
		r.once(fmt.Sprintf("%d %s are missing from all of its latencies", n, which))
	}
}

// either sets the number of failures. The argument beside is the number of those that the tool does not count as
// requests, and kinds are the numbers of the others by kind. A request may be counted under several kinds, so the total
// is known only if at most one kind occurred; otherwise, beside plus the largest kind is a lower bound.
func (r *Reading) either(beside int64, kinds ...int64) error {
	all, most := beside, slices.Max(kinds)
	for _, n := range kinds {
		if all += n; all < 0 {
			return errors.New("it counts more errors than there can be")
		}
	}
	r.Beside = beside
	if all == beside+most {
		r.Errors = &all
		return nil
	}
	r.ErrorsAtLeast = beside + most
	r.once(fmt.Sprintf("of its requests %d failed at least: a request may be counted under several kinds of failures, "+
		"%d together", r.ErrorsAtLeast, all))
	return nil
}

// warn adds warnings that follow from the numbers. It discards values that contradict each other, and names values that
// the tool printed as 0 and headings without a known quantile.
func (r *Reading) warn(t *Tool) {
	for _, name := range slices.Sorted(maps.Keys(r.headings)) {
		if name != "" && !r.headings[name] {
			r.once(fmt.Sprintf("below %q there is no quantile that is known, so what stands there is not read: another "+
				"version of %s, or its options, may write it otherwise", name, r.Tool))
		}
	}
	parts := []*Part{&r.Part}
	for i := range r.Parts {
		parts = append(parts, &r.Parts[i])
	}
	for _, of := range r.both {
		r.once(fmt.Sprintf("it has more than one value of %s: none is read", strings.TrimSpace(of[0]+" "+of[1])))
		for _, p := range parts {
			if p.Name == of[0] {
				*p.latency(of[1]) = nil
			}
		}
	}
	for i, p := range parts {
		if p.untimed() {
			p.Seconds, r.zero = nil, append(r.zero, strings.TrimSpace(p.Name+" duration"))
		}
		if i == 0 && len(r.Parts) > 0 {
			continue
		}
		for _, w := range p.disagreeing(t, r.left) {
			if len(r.Parts) > 0 {
				w = p.Name + ": " + w
			}
			r.Warnings = append(r.Warnings, w)
		}
	}
	if slices.Sort(r.zero); len(r.zero) > 0 && (r.Requests == nil || *r.Requests > 0) {
		r.once("it prints 0 for " + clip(strings.Join(slices.Compact(r.zero), ", ")) +
			": below its unit, or of no request, and not read")
	}
	if r.Errors == nil {
		r.Warnings = append(r.Warnings, "it does not say how many requests failed")
	}
}

// disagreeing discards values that contradict each other, and returns a sentence about each contradiction: decreasing
// quantiles, or a mean above the maximum, by more than the tool's grain; a mean too small for a quantile; and a rate
// that does not match the number of requests.
func (p *Part) disagreeing(t *Tool, left int64) (says []string) {
	ladder := []struct {
		name string
		of   **float64
	}{{"p50", &p.P50}, {"p90", &p.P90}, {"p99", &p.P99}, {"p99.9", &p.P999}, {"maximum", &p.Max}}
	wrong := map[**float64]bool{}
	contradict := func(low, high string, lower, upper **float64, grain float64) {
		if *lower != nil && *upper != nil && **lower > **upper*(1+grain) {
			says = append(says, fmt.Sprintf("its %s, %g s, is above its %s, %g s: neither is read", low, **lower, high, **upper))
			wrong[lower], wrong[upper] = true, true
		}
	}
	if !t.paced {
		// Tools round the mean and the maximum to different precisions: wrk prints 999.60us and 1.00ms.
		contradict("mean", "maximum", &p.Mean, &p.Max, max(t.grain, 0.01))
	}
	for i, low := range ladder {
		for _, high := range ladder[i+1:] {
			contradict(low.name, high.name, low.of, high.of, t.grain)
		}
	}
	if !t.paced {
		// If a fraction of the requests took at least as long as a quantile, the mean is at least that fraction of the
		// quantile. The factor of two allows for rounding and for histograms.
		for _, q := range []struct {
			name   string
			of     **float64
			beyond float64
		}{{"p50", &p.P50, 0.5}, {"p90", &p.P90, 0.1}, {"p99", &p.P99, 0.01}} {
			if p.Mean != nil && *q.of != nil && 2**p.Mean < q.beyond**(*q.of) {
				says = append(says, fmt.Sprintf("its mean, %g s, is too small for its %s, %g s: neither is read", *p.Mean, q.name,
					**q.of))
				wrong[&p.Mean], wrong[q.of] = true, true
			}
		}
	}
	for of := range wrong {
		*of = nil
	}
	if p.Requests == nil || p.Seconds == nil || p.Rate == nil {
		return says
	}
	if !p.agrees(left) {
		says = append(says, fmt.Sprintf("its %d requests in %g s do not match its %g per second: none of the three is read",
			*p.Requests, *p.Seconds, *p.Rate))
		p.Requests, p.Seconds, p.Rate = nil, nil, nil
	}
	return says
}

// agrees reports whether the number of requests, plus those that count only in the rate (left), equals the rate times
// the seconds, to within ten requests plus a tenth plus the requests of 5 ms. Tools round times (redis-benchmark to
// hundredths of a second), and their clocks do not stop when the last request ends.
func (p *Part) agrees(left int64) bool {
	made, rated := float64(*p.Requests+left), *p.Rate**p.Seconds
	return math.Abs(made-rated) <= 10+0.1*max(made, rated)+0.005**p.Rate
}

// check returns an error for impossible numbers. Among these are more failed requests than requests, because no gate
// could judge such failures.
func (r *Reading) check() error {
	if len(r.Parts) > maxParts {
		return fmt.Errorf("it has %d parts, more than %d", len(r.Parts), maxParts)
	}
	for _, p := range append([]Part{r.Part}, r.Parts...) {
		if err := p.check(); err != nil {
			return err
		}
	}
	if r.Requests == nil && r.Rate == nil && len(r.Parts) == 0 {
		return errors.New("it says neither how many requests it made nor how many per second")
	}
	return nil
}

func (p Part) check() error {
	for name, v := range map[string]*float64{"duration": p.Seconds, "rate": p.Rate, "mean latency": p.Mean, "p50": p.P50,
		"p90": p.P90, "p99": p.P99, "p99.9": p.P999, "largest latency": p.Max} {
		if v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0) || *v < 0) {
			return fmt.Errorf("its %s is %v", name, *v)
		}
	}
	for name, n := range map[string]*int64{"number of requests": p.Requests, "number of errors": p.Errors,
		"number of bytes": p.Bytes, "number of errors beside": &p.Beside} {
		if n != nil && *n < 0 {
			return fmt.Errorf("its %s is %d", name, *n)
		}
	}
	if p.Requests != nil && p.Errors != nil && *p.Errors-p.Beside > *p.Requests {
		return fmt.Errorf("its %d errors are more than its %d requests", *p.Errors, *p.Requests)
	}
	return nil
}

// latency returns the field for a latency by its name, or nil if a Part does not have it.
func (p *Part) latency(name string) **float64 {
	return map[string]**float64{"mean": &p.Mean, "p50": &p.P50, "p90": &p.P90, "p99": &p.P99, "p99.9": &p.P999,
		"p100": &p.Max, "max": &p.Max}[name]
}

// untimed reports whether the tool rounded the duration to 0.
func (p *Part) untimed() bool {
	return p.Seconds != nil && *p.Seconds == 0 && (p.Requests == nil || *p.Requests > 0)
}

// together adds up parts. If inTurn is set, the parts ran one after the other and their times add up; otherwise the
// longest time counts. If a part has no number of requests, all parts are assumed to have made equally many. Quantiles
// are left out, because those of several distributions cannot be combined.
func together(parts []Part, inTurn bool) Part {
	if len(parts) == 1 {
		return parts[0]
	}
	all := Part{
		Requests: sum(parts, func(p Part) *int64 { return p.Requests }),
		Errors:   sum(parts, func(p Part) *int64 { return p.Errors }),
		Bytes:    sum(parts, func(p Part) *int64 { return p.Bytes }),
		Seconds: sum(parts, func(p Part) *float64 {
			if p.untimed() {
				return nil
			}
			return p.Seconds
		}),
	}
	if !inTurn {
		all.Rate = sum(parts, func(p Part) *float64 { return p.Rate })
		if all.Seconds != nil {
			*all.Seconds = *slices.MaxFunc(parts, func(a, b Part) int { return cmp.Compare(*a.Seconds, *b.Seconds) }).Seconds
		}
		return all
	}
	// The rate is computed from the parts' rates, because their times are rounded more.
	made, took := 0.0, 0.0
	for _, p := range parts {
		n := 1.0
		if all.Requests != nil {
			n = float64(*p.Requests)
		}
		if p.Rate == nil || *p.Rate <= 0 {
			return all
		}
		made, took = made+n, took + n / *p.Rate
	}
	if took > 0 {
		all.Rate = new(made / took)
	}
	return all
}

// sum adds up a value over parts. It returns nil if there are no parts, a part has no value, or the sum overflows.
func sum[P any, N int64 | float64](parts []P, of func(P) *N) *N {
	if len(parts) == 0 {
		return nil
	}
	var all N
	for _, p := range parts {
		n := of(p)
		if n == nil {
			return nil
		}
		if all += *n; all < 0 && *n >= 0 {
			return nil // overflow
		}
	}
	return &all
}

// clip limits a tool's output to what a message may contain.
func clip(said string) string {
	const most = 60
	said = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, said), "")
	return text.ClipTo(said, most)
}
