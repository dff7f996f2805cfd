package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/role"
	"tare/internal/lib/delay"
	"tare/internal/lib/pace"
	"tare/internal/lib/quantity"
	"tare/internal/lib/stats"
)

// served is the result of a load on a server, each in a separate process.
type served struct {
	load  load.Result
	waits histogram // waits in the server's handler; nil if it records none
	begin int64     // beginning of the measured window, in ns by pace.Now
	from  int64     // start of the stalls, in ns by pace.Now
	seen  observed  // what the witness saw, from before the first request on
}

// unanswered is the error of a load that did not get all its answers in time, so its latencies are incomplete.
type unanswered struct {
	intended, done int64
	errors         string
}

func (u unanswered) Error() string {
	return fmt.Sprintf("the server answered %d of %d requests: %s", u.done, u.intended, u.errors)
}

// weight returns the weight that takes the place of those that the load would have had: how many of its requests were
// answered. A long stall of the machine counts as a disturbance, because it can leave requests unanswered, too.
func (u unanswered) weight(what string) Weight {
	return known(what+": requests answered", quantity.Count, float64(u.intended), float64(u.done),
		Tolerance{Absolute: 0.5},
		fmt.Sprintf("a load of %d requests; truth: all of them", u.intended)).noted(u.Error()).
		unless(func(_ float64, s stood) bool { return s.longest >= longWait.Seconds() })
}

// longWait is the minimum length of a stall of the machine that may end a load before its last answers arrive.
const longWait = 100 * time.Millisecond

const (
	// Requests per second: far below the capacity of either end, and not a multiple of the kernel's tick rate. If every
	// tick interrupted the same work, the kernel would count an idle machine as busy.
	latencyRate = 499
	lead        = 50 * time.Millisecond
	warmup      = 200 * time.Millisecond
)

// serve runs a load on a server for duration d. With stalls the load begins half-way between two of them, or together
// with one if d is at most the length of a stall.
func (b *bench) serve(ctx context.Context, d time.Duration, stall delay.Stall, connections int,
	server ...string) (s served, err error) {
	var ready delay.Started
	argv := append([]string{kind.PlayCommand, "app", "http"}, server...)
	app, _, err := b.start(ctx, placement.Limits{Pin: 1}, &ready, argv...)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, app.stop()) }()
	generator, _, err := b.start(ctx, placement.Limits{Pin: 2}, nil, kind.PlayCommand, "load", "http",
		"--url", "http://"+ready.Address+"/", "--rate", fmt.Sprint(latencyRate), "--connections", fmt.Sprint(connections),
		"--arrivals", "constant", "--timeout", "10s", "--drain", "2s")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, generator.stop()) }()

	s.load, s.seen, err = watched(func() (r load.Result, err error) {
		schedule := role.Schedule{Begin: pace.Now() + int64(lead), Warmup: int64(warmup), Duration: int64(d)}
		if stall.Every > 0 {
			s.from = ready.StallsFrom
			schedule.Begin = firstRequest(stall, s.from, schedule.Begin+schedule.Warmup, d) - schedule.Warmup
		}
		s.begin = schedule.Begin + schedule.Warmup
		if err := generator.begin(schedule); err != nil {
			return r, err
		}
		return r, generator.result(ctx, &r)
	})
	if err != nil {
		return s, err
	}
	if s.load.Done != s.load.Intended {
		return s, unanswered{intended: s.load.Intended, done: s.load.Done, errors: fmt.Sprint(s.load.Errors)}
	}
	if len(server) == 0 {
		return s, nil
	}
	var said delay.Served
	app.End()
	if err := app.result(ctx, &said); err != nil {
		return s, err
	}
	h, err := stats.DecodeHistogram(said.Waits)
	if err != nil {
		return s, fmt.Errorf("decoding the waits of the server: %w", err)
	}
	s.waits = fromHDR(h)
	return s, nil
}

// firstRequest returns when a window of length d begins, not before atLeast: in the middle of the gap before a stall,
// or together with a stall if d is at most its length.
func firstRequest(stall delay.Stall, from, atLeast int64, d time.Duration) int64 {
	every := int64(stall.Every)
	first := from + every
	if d > stall.For {
		first -= (every - int64(stall.For)) / 2
	}
	for first < atLeast {
		first += every
	}
	return first
}

func (b *bench) latency() (all []planting, err error) {
	distributions := []string{"constant:5ms", "uniform:2ms:10ms", "two-point:5ms:20ms:0.05"}
	if b.o.Quick {
		distributions = distributions[1:]
	}
	for _, text := range distributions {
		all = append(all, planting{text, func(ctx context.Context) ([]Weight, error) { return b.delays(ctx, text) }})
	}
	for _, s := range []delay.Stall{
		{For: 10 * time.Millisecond, Every: 100 * time.Millisecond},
		{For: 100 * time.Millisecond, Every: 500 * time.Millisecond},
		{For: 500 * time.Millisecond, Every: time.Second},
	} {
		all = append(all, planting{fmt.Sprintf("stalls of %v", s.For),
			func(ctx context.Context) ([]Weight, error) { return b.stalls(ctx, s) }})
	}
	return all, nil
}

// delays compares quantiles with their true values: the time that requests really waited in the server, plus the
// latency of requests without any wait. The latter is measured in the same way, so any difference is an error that
// grows with the measured time, or one that waiting causes.
func (b *bench) delays(ctx context.Context, text string) ([]Weight, error) {
	d := b.length(8*time.Second, 2*time.Second+500*time.Millisecond)
	distribution, err := delay.Parse(text)
	if err != nil {
		return nil, err
	}
	// Both sides must describe the same requests, so the server skips those of the warm-up.
	skip := fmt.Sprint(math.Ceil(latencyRate * warmup.Seconds()))
	nothing := func() (histogram, error) { // the truth must not have the scale's built-in clock fault
		s, err := b.serve(ctx, d/2, delay.Stall{}, 32, "--delay-dist", "constant:0s")
		b.observe(s.seen)
		if err != nil {
			return nil, err
		}
		h, err := s.load.Histogram(load.Latency)
		return fromHDR(h), err
	}
	before, err := nothing()
	if err != nil {
		return nil, err
	}
	delayed, err := b.serve(ctx, d, delay.Stall{}, 32, "--delay-dist", text, "--skip", skip)
	b.observe(delayed.seen)
	if err != nil {
		return nil, err
	}
	after, err := nothing()
	if err != nil {
		return nil, err
	}
	got, err := b.histogram(&delayed.load, load.Latency)
	if err != nil {
		return nil, err
	}
	service, err := b.histogram(&delayed.load, load.Service)
	if err != nil {
		return nil, err
	}
	base := before.and(after)
	truth, first, last := delayed.waits.plus(base, 1000, 100), delayed.waits.plus(before, 1000,
		100), delayed.waits.plus(after, 1000, 100)
	var ws []Weight
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", 0.50}, {"p90", 0.90}, {"p99", 0.99}} {
		moved := math.Abs(first.quantile(q.q) - last.quantile(q.q)) // how much the true value itself changed meanwhile
		planted := fmt.Sprintf("server with delays %s, %d requests; truth: what each waited there, plus the latency "+
			"without delay (p50 %s)",
			text, got.total(), quantity.Value(base.quantile(0.5), quantity.Seconds))
		w := known(text+", "+q.name, quantity.Seconds, truth.quantile(q.q), got.quantile(q.q),
			Tolerance{Absolute: 20e-6, Part: 0.01}, planted)
		allowed := w.Tolerance.Allows(w)
		w = w.unless(func(off float64, s stood) bool {
			// Sending an answer also wakes a task, which can be late.
			return s.overTail(q.q) || moved >= off/2 || s.later(allowed) > (1-q.q)/2
		})
		w.ClosedLoop = new(service.quantile(q.q))
		w.Note = fmt.Sprintf("delay set at the server: %v; the truth before and after differs by %s",
			distribution.Quantile(q.q), quantity.Value(moved, quantity.Seconds))
		ws = append(ws, w)
	}
	return ws, nil
}

// stalls makes the server stall. Every request that is due during a stall waits until its end, however few connections
// there are to send it over: a clock that starts when a request is sent sees one such request for each connection.
//
// What the machine does during a stall of the server has no effect: waiting requests are answered when the server's
// stall ends. If the witness saw the machine disturbed at the end of a stall, or for long between stalls, single stalls
// are measured until the end of one was undisturbed.
func (b *bench) stalls(ctx context.Context, stall delay.Stall) ([]Weight, error) {
	d := b.length(10*time.Second, 2*time.Second)
	s, err := b.stalling(ctx, stall, d)
	var few unanswered
	if err != nil && !errors.As(err, &few) {
		return nil, err
	}
	windows, note := 0, ""
	spans, known := spansOf(s.seen.noise, b.ours, anyCPU, leastSpoiling)
	if known && spoilt(spans, stall, s.from, s.begin, d) {
		one, n, found := b.oneStall(ctx, stall)
		if windows = n; found {
			s, d, err = one, stall.For, nil
		} else if n > 0 {
			note = fmt.Sprintf("the machine was disturbed at the end of each of %d stalls", n)
		}
	}
	b.observe(s.seen)
	if err != nil {
		return nil, err
	}
	ws, err := b.weighStalls(s, stall, d)
	for i := range ws {
		if windows > 0 {
			chosen := 1
			if note != "" {
				chosen = 0
			}
			ws[i] = ws[i].by(chosen, windows, "single stalls").noted(note)
		}
	}
	return ws, err
}

func (b *bench) stalling(ctx context.Context, stall delay.Stall, d time.Duration) (served, error) {
	return b.serve(ctx, d, stall, stallConnections, "--stall", stall.For.String(), "--stall-every", stall.Every.String())
}

const (
	stallConnections = 4
	mostSingleStalls = 16
	// leastSpoiling is the minimum time, in seconds, that a CPU must have been away to show in the longest latency. It is
	// half of that latency's tolerance.
	leastSpoiling = 0.5e-3
	// The server wakes up beforeEnd before the end of a stall, to end it on time (pace.SleepUntil).
	beforeEnd = 2 * time.Millisecond
)

// singleStalls returns the time limit for measuring single stalls of one length.
func (b *bench) singleStalls() time.Duration { return b.length(30*time.Second, 8*time.Second) }

// oneStall measures one stall at a time until the witness saw no disturbance at the end of one. found is false if that
// did not happen in n stalls. The choice does not depend on the reading.
func (b *bench) oneStall(ctx context.Context, stall delay.Stall) (s served, n int, found bool) {
	begin := time.Now()
	for n < mostSingleStalls && time.Since(begin) < b.singleStalls() && !b.late() && ctx.Err() == nil {
		n++
		s, err := b.stalling(ctx, stall, stall.For)
		if err != nil {
			continue // the first window already shows errors that affect all of them
		}
		spans, known := spansOf(s.seen.noise, b.ours, anyCPU, leastSpoiling)
		if known && !spoilt(spans, stall, s.from, s.begin, stall.For) {
			return s, n, true
		}
	}
	return served{}, n, false
}

// spoilt reports whether stalls of the machine changed the latencies of requests that were due in the window of length
// d from begin on. They do near the end of a stall of the server, when waiting requests are answered, and elsewhere if
// they are so long that a request counts as slow.
func spoilt(spans []span, stall delay.Stall, from, begin int64, d time.Duration) bool {
	half := int64(stall.For / 2)
	catchUp := max(int64(time.Millisecond), int64(stall.For)/40)
	first := (begin - from) / int64(stall.Every)
	for k := first; from+k*int64(stall.Every) < begin+int64(d); k++ {
		starts := from + k*int64(stall.Every)
		ends := starts + int64(stall.For)
		if ends > begin && touched(spans, ends-int64(beforeEnd), ends+catchUp) {
			return true
		}
	}
	for _, s := range spans {
		s.from, s.to = max(s.from, begin), min(s.to, begin+int64(d))
		if s.to-s.from < half/2 {
			continue
		}
		into := (s.from - from) % int64(stall.Every)
		if within := into < int64(stall.For) && into+s.to-s.from <= int64(stall.For); !within {
			return true
		}
	}
	return false
}

// weighStalls compares the latencies of a window of length d with the schedules of the load and of the stalls.
func (b *bench) weighStalls(s served, stall delay.Stall, d time.Duration) ([]Weight, error) {
	latency, err := b.histogram(&s.load, load.Latency)
	if err != nil {
		return nil, err
	}
	service, err := b.histogram(&s.load, load.Service)
	if err != nil {
		return nil, err
	}
	half := stall.For / 2
	longest, slow := stallTruth(stall, s.from, s.begin, d, half)
	planted := fmt.Sprintf(
		"server that stands still for %v every %v, %d/s over %d connections; truth: the schedule of both",
		stall.For, stall.Every, latencyRate, stallConnections)

	// While the server catches up, waiting requests are answered in turn, so somewhat more are slow than were due in the
	// first half.
	allowed := Tolerance{Absolute: min(3, float64(slow)/3), Part: 0.05}
	name := fmt.Sprintf("stalls of %v: ", stall.For)
	count := known(fmt.Sprintf("%srequests slower than %v", name, half), quantity.Count,
		float64(slow), float64(latency.atLeast(half.Seconds())),
		allowed, planted).unless(func(off float64, s stood) bool {
		return s.asLong(half.Seconds()) || s.inEach(float64(d)/float64(stall.Every), latencyRate, off)
	})
	count.ClosedLoop = new(float64(service.atLeast(half.Seconds())))
	length := known(name+"longest latency", quantity.Seconds, longest, latency.longest(),
		Tolerance{Absolute: 1e-3, Part: 0.01}, planted).
		unless(func(off float64, s stood) bool { return s.asLong(off) })
	length.ClosedLoop = new(service.longest())
	return []Weight{count, length}, nil
}

// stallTruth returns the longest wait for the end of a stall among all requests that are due, in seconds, and how many
// of them wait at least atLeast.
func stallTruth(stall delay.Stall, from, begin int64, d, atLeast time.Duration) (longest float64, slow int) {
	for s := pace.NewSchedule(begin, latencyRate, pace.Constant, 0, 0, 1); s.Peek() < begin+int64(d); s.Advance() {
		into := (s.Peek() - from) % int64(stall.Every)
		if s.Peek() < from || into >= int64(stall.For) {
			continue
		}
		left := int64(stall.For) - into
		longest = max(longest, float64(left)/1e9)
		if left >= int64(atLeast) {
			slow++
		}
	}
	return longest, slow
}
