package running

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
)

// The methods, which differ in where the history of a request begins.
const (
	BusyPeriods = "busy-periods" // begins at the start of the request's busy period: exact
	Backlog     = "backlog"      // begins when the requests in flight last fell to their usual number: approximate
	// Requests: at its own start, if all requests that the last stall delayed have ended by then; for closed loops
	Requests = "requests"
)

const (
	// leastUntouched is the smallest probability of staying untouched that is corrected for: no request stands for more
	// than ten.
	leastUntouched = 0.1
	// lostPart is the fraction of requests that may be lost before another method is tried. With more, not even
	// the median is reported (load.TellsOf).
	lostPart = 0.1
	// unsteady is the fraction by which the number of requests in flight may change in the later half of the quiet times.
	unsteady = 0.1
	scale    = 1000 // see load.Running.Scale
	// longest is the longest time that the histograms resolve, in ns.
	longest = 100e9
)

// Classify divides the requests of a load by the stalls of its window, which lasts from begin to end (CLOCK_MONOTONIC,
// ns), and puts the undisturbed distributions and Running into r. logs holds the logs of all threads of the load. If a
// log is nil, no division was asked for, and r stays as it is.
func Classify(r *load.Result, logs []*Log, stalls *role.Stalls, begin, end int64) error {
	if slices.Contains(logs, nil) {
		return nil
	}
	r.Running = &load.Running{}
	c := classifier{run: r.Running, begin: begin, end: end}
	switch {
	case stalls == nil || stalls.Unknown != "":
		r.Running.Withheld = "stalls were not watched for"
		if stalls != nil {
			r.Running.Withheld = stalls.Unknown
		}
		return nil
	case !c.gather(logs):
		r.Running.Withheld = fmt.Sprintf("there were more than the %d requests that are kept one by one", MostRequests)
		return nil
	}
	c.watch(stalls)
	return c.fill(r, c.choose(severalClosed(r)))
}

// severalClosed reports whether a load keeps several requests in flight and sends another as soon as one is answered:
// the system is then never empty.
func severalClosed(r *load.Result) bool { return r.Mode == load.Closed && r.MostAtOnce() > 1 }

// classifier holds the requests of one load and what is known about the stalls.
type classifier struct {
	run        *load.Running
	begin, end int64
	requests   []Request // in order of Intended
	stalls     []span    // disjoint, in order; the watch lasts from the end of the first to the beginning of the last
}

// span is a stretch of time, in ns.
type span struct{ from, to int64 }

// gather sorts all requests by their intended start. It returns false if a log overflowed.
func (c *classifier) gather(logs []*Log) bool {
	n := 0
	for _, l := range logs {
		if l.full {
			return false
		}
		n += len(l.requests)
	}
	c.requests = make([]Request, 0, n)
	for _, l := range logs {
		c.requests = append(c.requests, l.requests...)
	}
	slices.SortFunc(c.requests, func(a, b Request) int { return cmp.Compare(a.Intended, b.Intended) })
	return true
}

// watch stores the stalls of all CPUs merged. The times before and after the watch count as stalls.
func (c *classifier) watch(s *role.Stalls) {
	from, to := max(s.From, c.begin), min(s.To, c.end)
	to = max(from, to)
	all := []span{{math.MinInt64, from}, {to, math.MaxInt64}}
	for _, one := range s.Spans {
		if one[1] > from && one[0] < to && one[1] > one[0] {
			all = append(all, span{one[0], one[1]})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	quiet := to - from
	for _, one := range all {
		last := len(c.stalls) - 1
		if last >= 0 && one.from <= c.stalls[last].to {
			c.stalls[last].to = max(c.stalls[last].to, one.to)
			continue
		}
		c.stalls = append(c.stalls, one)
	}
	for _, one := range c.stalls {
		quiet -= max(0, min(one.to, to)-max(one.from, from))
	}
	c.run.WatchedSeconds, c.run.QuietSeconds = float64(to-from)/1e9, float64(quiet)/1e9
}

// next returns the index of the first stall that ends after a given time: the stall around that time, or the next one.
// There always is one.
func (c *classifier) next(at int64) int {
	return min(sort.Search(len(c.stalls), func(i int) bool { return c.stalls[i].to > at }), len(c.stalls)-1)
}

// history is a stretch of the load that does not depend on earlier requests: a cycle of a regenerative process. A stall
// disturbs the requests of the history that have not ended when the stall begins.
type history struct {
	from, to int64 // to: its natural end, as far as observed
	requests int   // requests that belong to it and were due before the next stall
	stall    int64 // when the next stall begins; equal to from if the history began in a stall
	watched  bool  // it began in the watch and outside a stall
	last     bool  // the next stall is the end of the watch, or the history began before the watch
}

// take adds a request that ends at done to the history.
func (h *history) take(r *Request, done int64) {
	h.to = max(h.to, done)
	if r.Intended < h.stall {
		h.requests++
	}
}

// touched reports whether a stall began before the history ended.
func (h *history) touched() bool { return h.stall < h.to }

// begun returns a history that begins at a time.
func (c *classifier) begun(at int64) history {
	i := c.next(at)
	h := history{from: at, to: at, stall: c.stalls[i].from, last: i == len(c.stalls)-1}
	h.watched = at <= h.stall
	if !h.watched {
		h.stall = at
		h.last = i == 0 || h.last
	}
	return h
}

// split assigns the requests to histories.
type split struct {
	method    string
	level     int
	histories []history
	of        []int32 // history of each request; -1: it began before the first history
	untouched survival
	lost      float64 // fraction of all requests
}

// choose picks the method: BusyPeriods, unless it loses too many requests and Backlog loses fewer. If closed is true,
// it is Requests.
func (c *classifier) choose(closed bool) *split {
	if closed {
		return c.weigh(c.byRequest())
	}
	exact := c.weigh(c.byBusyPeriod())
	if exact.lost <= lostPart {
		return exact
	}
	level, steady := c.usual()
	if !steady {
		return exact
	}
	if approximate := c.weigh(c.byBacklog(level)); approximate.lost < exact.lost {
		return approximate
	}
	return exact
}

// byBusyPeriod begins a history with each request that finds no other in flight.
func (c *classifier) byBusyPeriod() *split {
	s := &split{method: BusyPeriods, of: make([]int32, len(c.requests))}
	until := int64(math.MinInt64)
	for i := range c.requests {
		r := &c.requests[i]
		if r.Intended >= until {
			s.histories = append(s.histories, c.begun(r.Intended))
		}
		until = max(until, r.done())
		s.histories[len(s.histories)-1].take(r, until)
		s.of[i] = int32(len(s.histories) - 1)
	}
	return s
}

// ends returns the times at which requests ended, in order.
func (c *classifier) ends() []int64 {
	ends := make([]int64, len(c.requests))
	for i := range c.requests {
		ends[i] = c.requests[i].done()
	}
	slices.Sort(ends)
	return ends
}

// byBacklog begins a history each time that the number of requests in flight falls to level. In a memoryless queue
// that is a regeneration point, just as an empty system is; in others it nearly is.
func (c *classifier) byBacklog(level int) *split {
	s := &split{method: Backlog, level: level, of: make([]int32, len(c.requests))}
	ends := c.ends()
	ended := 0
	finish := func(until int64) { // processes the requests that ended by that time
		for ; ended < len(ends) && ends[ended] <= until; ended++ {
			// With this request, ended+1 requests have ended. The variable begun counts the requests that were due by then.
			begun := sort.Search(len(c.requests), func(i int) bool { return c.requests[i].Intended > ends[ended] })
			if begun-(ended+1) != level {
				continue
			}
			if n := len(s.histories); n > 0 {
				s.histories[n-1].to = max(s.histories[n-1].to, ends[ended])
			}
			s.histories = append(s.histories, c.begun(ends[ended]))
		}
	}
	for i := range c.requests {
		r := &c.requests[i]
		finish(r.Intended)
		s.of[i] = int32(len(s.histories) - 1)
		if s.of[i] >= 0 {
			s.histories[s.of[i]].take(r, r.done())
		}
	}
	return s
}

// byRequest judges each request separately, once all requests that were in flight in the last stall have ended. It is
// for connections that send again as soon as they are answered: the system is then never empty, and the queue after a
// stall has at most one request per connection.
func (c *classifier) byRequest() *split {
	s := &split{method: Requests, of: make([]int32, len(c.requests))}
	recovered, at := make([]int64, len(c.stalls)), 0
	latest := int64(math.MinInt64)
	for k, stall := range c.stalls {
		for ; at < len(c.requests) && c.requests[at].Intended < stall.to; at++ {
			latest = max(latest, c.requests[at].done())
		}
		recovered[k] = max(latest, stall.to)
	}
	for i := range c.requests {
		r := &c.requests[i]
		h := c.begun(r.Intended)
		h.take(r, r.done())
		if k := c.next(r.Intended); k > 0 && h.watched && r.Intended < recovered[k-1] {
			h.watched, h.stall, h.last = false, h.from, k == 1
		}
		s.histories = append(s.histories, h)
		s.of[i] = int32(i)
	}
	return s
}

// usual returns the usual number of requests in flight: the median number that a request finds in the later half of
// the quiet times, when the effects of a stall should be over. steady is false if the number still changes within that
// half.
func (c *classifier) usual() (level int, steady bool) {
	ends := c.ends()
	type arrival struct {
		age   int64 // time since the end of the last stall, ns
		found int
	}
	var all []arrival
	ended := 0
	for i := range c.requests {
		at := c.requests[i].Intended
		for ; ended < len(ends) && ends[ended] <= at; ended++ {
		}
		if k := c.next(at); c.stalls[k].from > at && k > 0 {
			all = append(all, arrival{at - c.stalls[k-1].to, i - ended})
		}
	}
	slices.SortFunc(all, func(a, b arrival) int { return cmp.Compare(a.age, b.age) })
	quarter := len(all) / 4
	median := func(part []arrival) int {
		part = slices.Clone(part)
		slices.SortFunc(part, func(a, b arrival) int { return cmp.Compare(a.found, b.found) })
		return part[len(part)/2].found
	}
	if quarter == 0 {
		return 0, false
	}
	before, last := median(all[2*quarter:3*quarter]), median(all[3*quarter:])
	level = max(last, 1)
	return level, math.Abs(float64(before-last)) <= 1+unsteady*float64(level)
}

// fate says whether a stall touched a request.
type fate int

const (
	undisturbed fate = iota
	disturbed
	unwatched
)

// fate returns the fate of request i, which is r.
func (s *split) fate(i int, r *Request) fate {
	if s.of[i] < 0 {
		return unwatched
	}
	h := &s.histories[s.of[i]]
	switch {
	case h.watched && r.done() <= h.stall:
		return undisturbed
	case h.last:
		return unwatched
	}
	return disturbed
}

// weigh estimates the probability that a history stays untouched up to an age (s.untouched), and the fraction of
// requests that are lost (s.lost).
func (c *classifier) weigh(s *split) *split {
	type exit struct {
		age      int64
		touched  bool
		requests int
	}
	var exits []exit
	for i := range s.histories {
		if h := &s.histories[i]; h.watched {
			exits = append(exits, exit{min(h.stall, h.to) - h.from, h.touched(), h.requests})
		}
	}
	// At the same age ends come before stalls: a history that ends as a stall begins is untouched, and not at risk.
	slices.SortFunc(exits, func(a, b exit) int {
		switch {
		case a.age == b.age && b.touched && !a.touched:
			return -1
		case a.age == b.age && a.touched && !b.touched:
			return 1
		}
		return cmp.Compare(a.age, b.age)
	})
	g, lost := 1.0, 0.0
	for i, e := range exits {
		if !e.touched {
			continue
		}
		left := g * (1 - 1/float64(len(exits)-i))
		if left < leastUntouched {
			lost += float64(e.requests) / g // no request like it stayed untouched
			continue
		}
		g = left
		s.untouched.ages, s.untouched.g = append(s.untouched.ages, e.age), append(s.untouched.g, g)
	}
	sum := 0.0
	for i := range c.requests {
		if r := &c.requests[i]; s.fate(i, r) == undisturbed {
			sum += s.weight(i, r)
		}
	}
	s.lost = 1
	if sum > 0 {
		s.lost = lost / (lost + sum)
	}
	return s
}

// weight returns the weight of request i, which is r and undisturbed.
func (s *split) weight(i int, r *Request) float64 {
	return 1 / s.untouched.at(r.done()-s.histories[s.of[i]].from)
}

// survival is a probability that falls in steps.
type survival struct {
	ages []int64
	g    []float64
}

// at returns the probability of surviving to an age, in ns.
func (s *survival) at(age int64) float64 {
	i, _ := slices.BinarySearch(s.ages, age)
	if i == 0 {
		return 1
	}
	return s.g[i-1]
}

// sample is an undisturbed request.
type sample struct {
	*Request
	weight  float64
	history int32
}

// fill puts the undisturbed distributions, and the counts on which they are based, into r.
func (c *classifier) fill(r *load.Result, s *split) error {
	run := c.run
	run.Method, run.Level, run.LostShare = s.method, s.level, s.lost
	var samples []sample
	var sum, squares float64
	for i := range c.requests {
		q := &c.requests[i]
		if q.failed {
			continue
		}
		// Requests of the warm-up count too: the requests in flight at the beginning of the window stand for the requests in
		// flight at its end.
		if k := c.next(q.done()); c.stalls[k].from > q.done() {
			run.DoneQuiet++
		}
		if q.Intended < c.begin || q.Intended >= c.end {
			continue
		}
		switch s.fate(i, q) {
		case disturbed:
			run.Disturbed++
		case unwatched:
			run.Unwatched++
		default:
			run.Undisturbed++
			w := s.weight(i, q)
			samples = append(samples, sample{q, w, s.of[i]})
			sum, squares = sum+w, squares+w*w
			run.LargestWeight = max(run.LargestWeight, w)
		}
	}
	if len(samples) == 0 {
		run.Withheld = "no request was undisturbed"
		if run.Disturbed+run.Unwatched == 0 {
			run.Withheld = "no request was answered"
		}
		return nil
	}
	run.Effective, run.Scale = sum*sum/squares, scale
	run.Beyond, run.Bursts = map[string]map[string]float64{}, map[string]map[string]float64{}
	// The histogram's total counts all requests of the window, so that loads merge in proportion to their work, not to
	// their quiet time.
	count := scale * float64(run.Undisturbed+run.Disturbed+run.Unwatched) / sum
	for name, value := range map[string]func(*Request) float32{
		load.LatencyRunning: func(q *Request) float32 { return q.Done },
		load.ServiceRunning: func(q *Request) float32 { return q.Done - q.Sent },
		load.ConnectRunning: func(q *Request) float32 { return q.Connect },
		load.OwnLagRunning:  func(q *Request) float32 { return q.OwnLag },
	} {
		if err := histogram(r, name, samples, value, count); err != nil {
			return err
		}
	}
	return nil
}

// histogram puts one weighted histogram into r, unless no sample has a value.
func histogram(r *load.Result, name string, samples []sample, value func(*Request) float32, count float64) error {
	h := hdrhistogram.New(1, longest, 3)
	for _, one := range samples {
		if v := value(one.Request); v >= 0 {
			n := max(int64(math.Round(one.weight*count)), 1)
			_ = h.RecordValues(min(int64(v), longest), n) // in range, so there is no error
		}
	}
	if h.TotalCount() == 0 {
		return nil
	}
	beyond, bursts := map[string]float64{}, map[string]float64{}
	for _, q := range load.Quantiles {
		tail := h.ValueAtQuantile(100 * min(r.Running.Rank(q.Q), 1))
		tail -= tail >> 10 // from the upper end of a bucket of the histogram to its lower end
		var total, sum, squares float64
		histories := map[int32]float64{}
		for _, one := range samples {
			if v := value(one.Request); v >= 0 {
				total += one.weight
				if int64(v) >= tail {
					sum, squares = sum+one.weight, squares+one.weight*one.weight
					histories[one.history] += one.weight
				}
			}
		}
		// The effective number of requests beyond the quantile: this many of equal weight would carry as much information.
		beyond[q.Name] = (1 - q.Q) * total * sum / squares
		squares = 0
		for _, w := range histories {
			squares += w * w
		}
		bursts[q.Name] = sum * sum / squares
	}
	r.Running.Beyond[name], r.Running.Bursts[name] = beyond, bursts
	return r.SetHistogram(name, h)
}
