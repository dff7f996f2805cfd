package tracer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/child"
	cmdline "tare/internal/experiment/process"
	"tare/internal/lib/lists"
	execload "tare/internal/tracing/exec"
)

// pause is the time between two reads of a tracer's output.
const pause = 5 * time.Millisecond

// leftTime limits the wait for the remaining output of a tracer that has ended, if one of its children still has the
// stream open.
const leftTime = time.Second

// askTime is how long a tracer may take to print its totals on request.
const askTime = 500 * time.Millisecond

// probeEvery is the time between the execs that probe a tracer, and lookEvery the time between checks whether it has
// delivered one.
const (
	probeEvery = 50 * time.Millisecond
	lookEvery  = 10 * time.Millisecond
)

// Running is a running tracer. Its methods may be used concurrently.
type Running struct {
	child.Process
	tracer *Tracer
	url    string // the address of the tracer's page of metrics

	out       child.Output // its lock guards the feeds and tallies below
	feeds     [2]feed
	delivered *tally
	lost      *tally        // nil: the tracer does not report losses
	since     int64         // start time of the process, from the tracer's metrics, in seconds since 1970; 0: unknown
	saw       chan struct{} // closed once the tracer has written the line that shows that it is ready
}

// streams are the output streams of a process, in the order of Running.feeds.
var streams = [2]Stream{Stdout, Stderr}

// Start starts the tracer; begin starts the command in its control group. onEnd is called with the reason if the tracer
// ends unexpectedly. The caller must eventually call Stop or Kill.
func Start(t *Tracer, p cmdline.Place, begin child.Starter, onEnd func(error)) (*Running, error) {
	var lacking error
	fill := func(raw string) string {
		text, err := p.Fill(raw)
		lacking = cmp.Or(lacking, err)
		return text
	}
	for name, text := range t.Files {
		if err := os.WriteFile(filepath.Join(p.Dir, name), []byte(fill(text)), 0o600); err != nil {
			return nil, fmt.Errorf("writing a file for %s: %w", t.Argv[0], err)
		}
	}
	cmd := child.Command{Argv: withFilesystems(t.Filesystems, lists.Map(t.Argv, fill)), Env: lists.Map(t.Env, fill)}
	r := &Running{
		tracer: t, saw: make(chan struct{}), delivered: newTally(t.Delivered), url: fill(t.Delivered.URL),
	}
	if lacking != nil {
		return nil, fmt.Errorf("the command of %s %w", t.name(), lacking)
	}
	if t.Lost != nil {
		r.lost = newTally(*t.Lost)
	}
	for i := range r.feeds {
		for _, t := range []*tally{r.delivered, r.lost} {
			if t != nil && t.source.Metric == nil && (t.source.Stream == "" || t.source.Stream == streams[i]) {
				r.feeds[i].tallies = append(r.feeds[i].tallies, t)
			}
		}
		if t.Ready.Pattern != nil {
			r.feeds[i].watch = r.readyLine
		}
	}
	if t.Ready.Pattern == nil {
		close(r.saw)
	}
	r.out.Take = func(i int, piece []byte) { r.feeds[i].write(piece) }
	err := child.Start(&r.Process, cmd, child.Options{
		Name: t.name(), Begin: begin, Output: &r.out, Stop: t.Stop, Grace: t.StopTime, Linger: leftTime,
		OnEnd: func() { onEnd(r.Failure("during the trial")) },
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// readyLine checks whether a line shows that the tracer is ready.
func (r *Running) readyLine(line []byte) {
	if !r.tracer.Ready.Pattern.Match(line) {
		return
	}
	for i := range r.feeds {
		r.feeds[i].watch = nil
	}
	close(r.saw)
}

// Ready waits until the tracer has shown that it sees every exec from now on. It may call probe to make an exec that
// the tracer must see. The timeout applies to the line that the tracer writes, and separately to the first probe that
// it delivers.
func (r *Running) Ready(ctx context.Context, timeout time.Duration, probe func(context.Context) error) error {
	if err := r.sawLine(ctx, timeout); err != nil {
		return err
	}
	if err := r.pass(ctx, r.tracer.Ready.After); err != nil {
		return err
	}
	if !r.tracer.Ready.Probe {
		return nil
	}
	return r.probe(ctx, timeout, probe)
}

// sawLine waits for the line that shows that the tracer is ready.
func (r *Running) sawLine(ctx context.Context, timeout time.Duration) error {
	late := fmt.Errorf("%s did not say within %v that it is ready: no line matched %q", r.Name(), timeout,
		r.tracer.Ready.Pattern)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, late)
	defer cancel()
	err := r.Await(ctx, pause, func() bool {
		select {
		case <-r.saw:
			return true
		default:
			return false
		}
	})
	if errors.Is(err, late) {
		return r.WithLastWords(late)
	}
	return err
}

// pass waits for a duration, during which the tracer must not end.
func (r *Running) pass(ctx context.Context, d time.Duration) error {
	end := time.Now().Add(d)
	return r.Await(ctx, d, func() bool { return !time.Now().Before(end) })
}

// probe makes execs until the tracer has delivered one. It makes none as long as the tracer's count cannot be read, for
// example because its page of metrics is not served yet. If the count can be read only after the timeout, because the
// machine stood still for that long, one exec is still made before probe gives up.
func (r *Running) probe(ctx context.Context, timeout time.Duration, probe func(context.Context) error) error {
	var first *int64 // what the tracer had delivered before the first exec
	var last time.Time
	made := 0
	for deadline := time.Now().Add(timeout); ; {
		said, unread := r.Counts(ctx)
		switch {
		case unread != nil:
		case first == nil:
			first = &said.Delivered
		case said.Delivered > *first:
			return nil
		}
		switch {
		case time.Now().After(deadline) && unread != nil:
			return fmt.Errorf("what %s delivers could not be read within %v: %w", r.Name(), timeout, unread)
		case made > 0 && time.Now().After(deadline):
			return r.WithLastWords(fmt.Errorf("%s delivered none of %d execs within %v, so it is not known that it sees any",
				r.Name(), made, timeout))
		case first != nil && time.Since(last) >= probeEvery:
			if err := probe(ctx); err != nil {
				return err
			}
			made, last = made+1, time.Now()
		}
		if err := r.pass(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// name returns the tracer's name in messages: the name of the program, or of the tare command with its subcommands.
func (t *Tracer) name() string {
	if t.Self() {
		flag := slices.IndexFunc(t.Argv, func(arg string) bool { return strings.HasPrefix(arg, "-") })
		if flag < 0 {
			flag = len(t.Argv)
		}
		return strings.Join(append([]string{"tare"}, t.Argv[1:flag]...), " ")
	}
	return filepath.Base(t.Argv[0])
}

// Counts returns the current counts, which include everything that the tracer has written so far. If the tracer prints
// totals on request, Counts requests them.
func (r *Running) Counts(ctx context.Context) (execload.Said, error) {
	if r.tracer.Ask != 0 {
		r.ask()
	}
	if err := r.scrape(ctx); err != nil {
		return execload.Said{}, err
	}
	r.out.Read()
	r.out.Lock()
	defer r.out.Unlock()
	if why := r.delivered.doubt; why != "" {
		return execload.Said{}, r.WithLastWords(fmt.Errorf("it is not known how many events %s delivered: %s", r.Name(), why))
	}
	c := execload.Said{Delivered: r.delivered.n, Knows: r.delivered.seen}
	if r.lost != nil && r.lost.doubt == "" {
		c.Lost, c.Says = r.lost.n, r.lost.seen || r.lost.source.Sum != nil // see LossUnknown
	}
	return c, nil
}

// LossUnknown returns the reason why the number of events that the tracer lost is unknown. It returns "" if the number
// is known, or if the tracer is one that never reports losses. A tracer that writes a line for each loss has lost none
// as long as it has written none.
func (r *Running) LossUnknown() string {
	r.out.Read()
	r.out.Lock()
	defer r.out.Unlock()
	switch {
	case r.lost == nil:
		return ""
	case r.lost.doubt != "":
		return r.lost.doubt
	case r.lost.seen || r.lost.source.Sum != nil:
		return ""
	}
	return "it never said so: " + r.lost.source.lacks(r.url)
}

// lacks describes what is missing in the output or the metrics of a source.
func (s Source) lacks(url string) string {
	if s.Metric != nil {
		return fmt.Sprintf("its metrics at %s have no %s", url, s.Metric.name)
	}
	return fmt.Sprintf("no line of its %s has a number at %s", s.Stream, strings.Join(s.JSON, "."))
}

// ask makes the tracer print its totals, and waits for them for up to askTime.
func (r *Running) ask() {
	updates := func() int64 {
		r.out.Read()
		r.out.Lock()
		defer r.out.Unlock()
		return r.delivered.updates
	}
	before := updates()
	if r.over() || r.Signal(r.tracer.Ask) != nil {
		return // the tracer has just ended
	}
	for deadline := time.Now().Add(askTime); updates() == before && time.Now().Before(deadline); {
		time.Sleep(pause)
	}
}

// over reports whether the tracer has ended, or has been asked to end.
func (r *Running) over() bool {
	select {
	case <-r.Ended():
		return true
	default:
		return r.Asked()
	}
}

// scrape reads the counts that come from metrics. It does nothing once the tracer has ended or has been asked to end,
// so that the counts keep their last values.
func (r *Running) scrape(ctx context.Context) error {
	if r.delivered.source.Metric == nil && (r.lost == nil || r.lost.source.Metric == nil) {
		return nil
	}
	if r.over() {
		return nil
	}
	page, err := scrape(ctx, r.url)
	if err != nil {
		return r.WithLastWords(err)
	}
	r.out.Lock()
	defer r.out.Unlock()
	since, says, err := (&selector{name: "process_start_time_seconds"}).sum(page)
	again := err == nil && says && r.since != 0 && since != r.since
	if err == nil && says {
		r.since = since
	}
	for _, t := range []*tally{r.delivered, r.lost} {
		if t == nil || t.source.Metric == nil {
			continue
		}
		n, seen, err := t.source.Metric.sum(page)
		switch {
		case err != nil:
			return err
		case seen:
			t.total(n)
		case t.seen:
			t.doubt = "its metrics no longer have " + t.source.Metric.name
		}
		if again && t.seen {
			t.doubt = "its process was started again (process_start_time_seconds), and its counts with it"
		}
	}
	return nil
}

// Unmatched returns the number of lines on the stream of delivered events if none of them counted as an event, because
// the pattern may then be wrong. It returns 0 if a line counted, or if events are not counted by lines.
func (r *Running) Unmatched() int64 {
	r.out.Lock()
	defer r.out.Unlock()
	if r.delivered.source.Lines == nil || r.delivered.n > 0 {
		return 0
	}
	for i, stream := range streams {
		if stream == r.delivered.source.Stream {
			return r.feeds[i].lines
		}
	}
	return 0
}

// Unknown returns an error with the reason why the number of delivered events is unknown, for a tracer that never
// reported a number. name is the tracer's name in the error.
func (r *Running) Unknown(name string) error {
	return r.WithLastWords(fmt.Errorf("%s never said how many events it delivered: %s", name,
		r.delivered.source.lacks(r.url)))
}
