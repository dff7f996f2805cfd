package ads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tare/internal/pace"
)

// stream is one data plane's. All of it belongs to the goroutine that serves it.
type stream struct {
	o     *Options
	sets  *nameSets
	delta bool
	node  string
	entry *entry
	wake  chan struct{} // holds one: its view may be another

	subs  []*subscription // by stage and rank
	count int             // of responses
	held  [stages]int64   // since when a stage waits for those before it, ns by pace.Now; 0: it does not
	due   int64           // when to look again, whatever comes; 0: no need to
}

// wakeUp has the stream look at its view. It never waits.
func (s *stream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// serve is the life of a stream after its first request.
func (s *stream) serve(g grpc.ServerStream, first *request, receivers interface{ Go(func()) }) error {
	requests, received := make(chan *request), make(chan error, 1)
	ctx := g.Context()
	receivers.Go(func() { received <- receive(ctx, g, s.delta, requests) })
	var clock alarm
	defer clock.stop()
	if err := s.take(first); err != nil {
		return err
	}
	for first = nil; ; {
		for r := s.next(pace.Now()); r != nil; r = s.next(pace.Now()) {
			if err := s.send(g, r); err != nil {
				return err
			}
		}
		if s.due > 0 {
			clock.set(time.Duration(s.due - pace.Now()))
		} else {
			clock.stop()
		}
		select {
		case r := <-requests:
			if err := s.take(r); err != nil {
				return err
			}
		case <-s.wake:
		case <-clock.c:
		case err := <-received:
			return err
		case <-s.entry.gone:
			return status.Error(codes.NotFound, "there is no such data plane any more")
		}
	}
}

// alarm is a timer that is there only while it is set: an idle stream has none.
type alarm struct {
	timer *time.Timer
	c     <-chan time.Time // nil: it is not set
}

func (a *alarm) set(in time.Duration) {
	if a.timer == nil {
		a.timer = time.NewTimer(in)
	} else {
		a.timer.Reset(in)
	}
	a.c = a.timer.C
}

func (a *alarm) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
	*a = alarm{}
}

// receive hands requests on until the stream ends. It reads no faster than the quota lets it: the rest waits in the
// data plane, by the flow control of the connection.
func receive(ctx context.Context, g grpc.ServerStream, delta bool, to chan<- *request) error {
	q := quota{left: quotaAtOnce, at: pace.Now()}
	for {
		r := &request{delta: delta}
		if err := g.RecvMsg(r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if wait := q.take(r.size, pace.Now()); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case to <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// What a stream may ask for: so many requests at once, and so many per second for long. One counts as more by its size.
// A data plane asks some ten times at the beginning, and then answers what it is told.
const (
	quotaAtOnce    = 2000
	quotaPerSecond = 200
	quotaBytes     = 64 << 10 // that count as one request more
)

// quota is what a stream may still ask for.
type quota struct {
	left float64 // requests; below 0: the next must wait
	at   int64   // ns by pace.Now
}

// take takes a request of so many bytes out of the quota, and says how long to wait before it is served.
func (q *quota) take(bytes int, now int64) time.Duration {
	q.left = min(quotaAtOnce, q.left+float64(now-q.at)/1e9*quotaPerSecond) - 1 - float64(bytes)/quotaBytes
	q.at = now
	return time.Duration(max(0, -q.left) / quotaPerSecond * 1e9)
}

// of is the subscription to a type; nil: there is none.
func (s *stream) of(url string) *subscription {
	for _, sub := range s.subs {
		if sub.url == url {
			return sub
		}
	}
	return nil
}

// subscribe adds a subscription to a type.
func (s *stream) subscribe(url string) *subscription {
	sub := &subscription{url: url, kind: kindOf(url), sent: empty, names: noNames}
	s.subs = append(s.subs, sub)
	slices.SortStableFunc(s.subs, func(a, b *subscription) int { return a.kind.rank - b.kind.rank })
	return sub
}

// take takes a request in.
func (s *stream) take(r *request) error {
	if r.err != nil {
		return r.err
	}
	if r.url == "" {
		return status.Error(codes.InvalidArgument, "the request has no type")
	}
	sub := s.of(r.url)
	first := sub == nil
	if first {
		if len(s.subs) == maxTypes {
			return status.Errorf(codes.ResourceExhausted, "there are %d types on the stream already", maxTypes)
		}
		sub = s.subscribe(r.url)
	}
	if sub.answer(r) && s.o.OnAnswer != nil {
		a := Answer{Node: s.node, TypeURL: r.url, Nonce: r.nonce, Version: r.version, Time: pace.Now(),
			Since: sub.since, Asked: sub.asked}
		if a.Refused = r.wrong; r.refused && r.wrong == "" {
			a.Refused = "no reason is given"
		}
		s.o.OnAnswer(a)
	}
	now := s.entry.view.Load().table(r.url)
	switch {
	case s.delta:
		sub.change(r, first, now, s.sets)
	case sub.nonce == "" || r.nonce == sub.nonce: // an older one: the answer to the last response says more
		sub.replace(r.names, now, s.sets)
	}
	if len(sub.names.list) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "more than %d names of %s are asked for", maxNames, r.url)
	}
	return nil
}

// next is what the data plane is to be told next; nil: nothing, before another request, another view, or s.due.
func (s *stream) next(now int64) *response {
	view := s.entry.view.Load()
	if s.due = 0; view == nil {
		return nil
	}
	for at := range stages {
		before := s.under(at, now)
		waits := false
		for i := range s.subs {
			sub := s.subs[i]
			if at == breaks { // what refers to others goes first: routes, then clusters, then endpoints
				sub = s.subs[(i+s.turning())%len(s.subs)]
			}
			table := view.table(sub.url)
			if !sub.pending(at, table) {
				continue
			}
			if before > 0 && !s.impatient(at, now) {
				s.lookAt(before)
				waits = true
				continue
			}
			if sub.blocked(now, s.o.Patience) {
				s.lookAt(sub.at + int64(s.o.Patience))
				continue
			}
			if n := sub.tell(at, table, s.delta); n != nil {
				return s.response(sub, n, view)
			}
		}
		if !waits {
			s.held[at] = 0
		}
	}
	return nil
}

// turning is where subscriptions of the second stage begin.
func (s *stream) turning() int {
	i := slices.IndexFunc(s.subs, func(sub *subscription) bool { return sub.kind.stage == turns })
	return max(i, 0)
}

// under is until when a stage has to wait for what came before it, ns by pace.Now; 0: it does not.
func (s *stream) under(at stage, now int64) (until int64) {
	for _, sub := range s.subs {
		if sub.kind.stage < at && sub.blocked(now, s.o.Patience) {
			until = max(until, sub.at+int64(s.o.Patience))
		}
	}
	return until
}

// impatient says whether a stage has waited for long enough. It takes note of when that began.
func (s *stream) impatient(at stage, now int64) bool {
	if s.held[at] == 0 {
		s.held[at] = now
	}
	end := s.held[at] + int64(s.o.Patience)
	s.lookAt(end)
	return now >= end
}

func (s *stream) lookAt(at int64) {
	if s.due == 0 || at < s.due {
		s.due = at
	}
}

// response makes a response of news, and has what the data plane then waits for follow.
func (s *stream) response(sub *subscription, n *news, view *view) *response {
	for _, r := range n.changed {
		for _, need := range r.needs {
			if other := s.of(need.url); other != nil && other.wants(need.name) && other.sent.Get(need.name) != nil {
				other.owe(need.name, false)
			}
		}
	}
	if sub.kind.stage == turns { // what was there before may be in use for as long as this is not answered
		s.held[breaks] = 0
	}
	s.count++
	r := &response{sub: sub, version: n.version, nonce: strconv.Itoa(s.count)}
	version := n.version
	sub.at = pace.Now()
	if s.delta && s.o.Stamped {
		version = fmt.Sprintf(stampFormat, n.version, view.since, sub.at)
	}
	r.encode(s.delta, version, n.resources, n.removed)
	sub.nonce, sub.waiting, sub.flight = r.nonce, true, n.changed
	sub.since, sub.asked = view.since, n.asked
	return r
}

func (s *stream) send(g grpc.ServerStream, r *response) error {
	if s.o.OnSent != nil {
		s.o.OnSent(Sent{TypeURL: r.sub.url, Nonce: r.nonce, Resources: r.resources, Removed: r.removed, Time: r.sub.at,
			Node: s.node, Since: r.sub.since, Asked: r.sub.asked})
	}
	return g.SendMsg(r)
}
