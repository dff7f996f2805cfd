package ads

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tare/internal/lib/pace"
)

// stream is the stream of one data plane. While it is idle, two goroutines wait on it: gRPC's, and one that receives.
// They do nothing else, so their stacks stay small. A third goroutine does the work, and ends when there is none left.
type stream struct {
	server   *Server
	g        grpc.ServerStream
	delta    bool
	conn     *conn         // the connection that is charged for the stream; nil: none
	requests chan *request // received and not yet processed
	ended    chan error    // receives one error, as the last act of work()
	begins   *time.Timer   // ends the stream unless a request comes first
	debt     atomic.Int64  // cost of past requests, in bytes, that the quota has not been charged for yet

	mu      sync.Mutex
	woken   bool  // there may be work
	working bool  // work() is running
	over    bool  // work() will not run again
	closed  bool  // nothing more will be received
	lost    error // the error that ends the stream; nil: the data plane has closed its side

	// The fields below belong to work() until it sends to ended.
	kept  int64 // bytes that the connection has been charged for the stream
	node  string
	key   string
	entry *entry          // nil before the first request
	subs  []*subscription // by stage and rank
	count int             // number of responses
	held  [stages]int64   // when a stage began to wait for earlier ones, ns by pace.Now; 0: it does not wait
	due   int64           // when to look for work without an event, ns by pace.Now; 0: never
	alarm *time.Timer     // fires at due; nil: not set, so that an idle stream has no timer
}

// wakeUp starts work(), or makes it run once more if it is running. It never waits.
func (s *stream) wakeUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken = true
	if !s.working && !s.over {
		s.working = true
		s.server.atWork.Go(s.work)
	}
}

// work runs until there is nothing more to do.
func (s *stream) work() {
	for {
		s.mu.Lock()
		s.working, s.woken = s.woken, false
		working, closed, err := s.working, s.closed, s.lost
		s.mu.Unlock()
		if !working {
			return
		}
		if now := s.turn(); now != nil {
			closed, err = true, now
		}
		if closed {
			s.setAlarm(0)
			s.mu.Lock()
			s.over = true
			s.mu.Unlock()
			s.ended <- err
			return
		}
	}
}

// turn processes received requests, and sends all responses that are due.
func (s *stream) turn() error {
	for taken := true; taken; {
		if err := s.check(); err != nil {
			return err
		}
		select {
		case r := <-s.requests:
			err := s.take(r)
			s.conn.taken(r.size)
			if err != nil {
				return err
			}
		default:
			taken = false
		}
		if s.entry == nil {
			return nil
		}
		for r := s.next(pace.Now()); r != nil; r = s.next(pace.Now()) {
			// The peer must still be trusted when the view is sent, so this check comes after the view was loaded.
			err := s.check()
			if err == nil {
				err = s.weigh()
			}
			if err == nil {
				err = s.send(r)
			}
			if err != nil {
				return err
			}
		}
		if err := s.weigh(); err != nil {
			return err
		}
	}
	s.setAlarm(s.due)
	return nil
}

// check returns an error if a stream that has a key may not go on.
func (s *stream) check() error {
	switch {
	case s.entry == nil:
		return nil
	case s.entry.gone.Load():
		return status.Error(codes.NotFound, "there is no such data plane any more")
	}
	return denied(s.server.o.Check(s.g.Context()))
}

// setAlarm makes the stream look for work again at the given time (ns by pace.Now); 0: not before an event.
func (s *stream) setAlarm(at int64) {
	switch in := time.Duration(at - pace.Now()); {
	case at == 0 && s.alarm != nil:
		s.alarm.Stop()
		s.alarm = nil
	case at == 0:
	case s.alarm == nil:
		s.alarm = time.AfterFunc(in, s.wakeUp)
	default:
		s.alarm.Reset(in)
	}
}

// receive receives requests until the stream ends.
func (s *stream) receive() {
	s.close(s.receiveAll())
}

// close ends the stream with err, unless it has already ended. Nothing more is received.
func (s *stream) close(err error) {
	s.mu.Lock()
	if !s.closed {
		s.closed, s.lost = true, err
	}
	s.mu.Unlock()
	s.wakeUp()
}

// weigh charges the connection for what the stream keeps now. It returns an error if that is too much.
func (s *stream) weigh() error {
	if s.conn == nil {
		return nil
	}
	before := s.kept
	s.kept = 0
	for _, sub := range s.subs {
		s.kept += sub.keeps()
	}
	return s.conn.keep(s.kept - before)
}

// letGo credits the connection with what the stream kept, once the stream has ended.
func (s *stream) letGo() {
	if s.conn != nil {
		_ = s.conn.change(0, 0, -s.kept)
	}
}

// receiveAll receives requests no faster than the quota allows. Flow control makes the rest wait in the data plane. It
// returns nil when the data plane has closed its side.
func (s *stream) receiveAll() error {
	ctx := s.g.Context()
	by := s.conn
	if by == nil {
		by = &conn{quota: newQuota(pace.Now())}
	}
	for {
		r := &request{delta: s.delta}
		if err := s.g.RecvMsg(r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		s.begins.Stop()
		if wait := by.wait(int64(r.size) + s.debt.Swap(0)); wait > 0 {
			if err := pace.Sleep(ctx, wait); err != nil {
				return err
			}
		}
		select {
		case s.requests <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.wakeUp()
	}
}

// open processes the first request, which identifies the data plane.
func (s *stream) open(first *request) error {
	s.node = first.id
	key, err := s.server.key(s.g.Context(), s.node)
	if err != nil {
		return err
	}
	s.server.join(key, s)
	// If the key was deleted before the stream joined it, nothing would ever end the stream.
	if now, err := s.server.key(s.g.Context(), s.node); err != nil {
		return err
	} else if now != key {
		return status.Error(codes.Unavailable, "the data plane's configuration has just changed: connect again")
	}
	return nil
}

// The quota of requests for the streams of a connection: a burst, and a rate per second. A large request, and one that
// takes much work, counts as several. A data plane makes about ten requests at the beginning, and then only answers
// responses.
const (
	quotaAtOnce    = 2000
	quotaPerSecond = 200
	quotaBytes     = 64 << 10 // bytes of requests, and of responses to them, that count as one more request
	quotaName      = 64       // bytes that each subscribed name counts as when names are added or dropped
)

// quota tracks how much of its quota a connection has left.
type quota struct{ bucket pace.Bucket }

func newQuota(now int64) quota { return quota{pace.NewBucket(quotaPerSecond, quotaAtOnce, now)} }

// take charges a request of the given size to the quota, and returns how long to wait before serving it.
func (q *quota) take(bytes, now int64) time.Duration {
	return q.bucket.Take(1+float64(bytes)/quotaBytes, now)
}

// of returns the subscription to a type, or nil.
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

// take applies a request to the subscription to its type, and calls Options.OnAnswer if the request answers a response.
func (s *stream) take(r *request) error {
	if r.err != nil {
		return r.err
	}
	if s.entry == nil {
		if err := s.open(r); err != nil {
			return err
		}
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
	if f := sub.answer(r); f != nil && s.server.o.OnAnswer != nil {
		a := Answer{Node: s.node, TypeURL: r.url, Nonce: r.nonce, Version: r.version, Time: pace.Now(),
			Since: f.since, Asked: f.asked}
		if a.Refused = r.wrong; r.refused && r.wrong == "" {
			a.Refused = "no reason is given"
		}
		s.server.o.OnAnswer(a)
	}
	now := s.entry.view.Load().table(r.url)
	switch {
	case s.delta:
		sub.change(r, first, now, &s.server.sets)
	case sub.nonce == "" || r.nonce == sub.nonce: // an older nonce is ignored
		sub.replace(r.names, now, &s.server.sets)
	}
	if len(r.names)+len(r.drop) > 0 {
		s.debt.Add(quotaName * int64(len(sub.names.list)))
	}
	if max(len(sub.names.list), len(sub.owed)) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "more than %d names of %s are asked for", maxNames, r.url)
	}
	return nil
}

// next returns the next response, or nil if there is none until another request, another view, or s.due.
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
			if at == breaks { // resources that refer to others go first: routes, then clusters, then endpoints
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
			if sub.blocked(now, s.server.o.Patience) {
				s.lookAt(sub.at + int64(s.server.o.Patience))
				continue
			}
			if n := sub.advance(at, table, s.delta); n != nil {
				return s.response(sub, n, view)
			}
		}
		if !waits {
			s.held[at] = 0
		}
	}
	return nil
}

// turning returns the index of the first subscription to listeners or routes (stage turns), or 0 if there is none.
func (s *stream) turning() int {
	i := slices.IndexFunc(s.subs, func(sub *subscription) bool { return sub.kind.stage == turns })
	return max(i, 0)
}

// under returns the time until which a stage must wait for earlier stages, ns by pace.Now; 0: it need not wait.
func (s *stream) under(at stage, now int64) (until int64) {
	for _, sub := range s.subs {
		if sub.kind.stage < at && sub.blocked(now, s.server.o.Patience) {
			until = max(until, sub.at+int64(s.server.o.Patience))
		}
	}
	return until
}

// impatient reports whether a stage has waited long enough. The first call begins the wait.
func (s *stream) impatient(at stage, now int64) bool {
	if s.held[at] == 0 {
		s.held[at] = now
	}
	end := s.held[at] + int64(s.server.o.Patience)
	s.lookAt(end)
	return now >= end
}

func (s *stream) lookAt(at int64) {
	if s.due == 0 || at < s.due {
		s.due = at
	}
}

// response makes a response from news, and marks as owed the resources that the data plane needs with it.
func (s *stream) response(sub *subscription, n *news, view *View) *response {
	for _, r := range n.changed {
		for _, need := range r.needs {
			if other := s.of(need.URL); other != nil && other.wants(need.Name) && other.sent.Get(need.Name) != nil {
				other.owe(need.Name, false, view.table(other.url))
			}
		}
	}
	if sub.kind.stage == turns { // until this is answered, the previous resources may be in use
		s.held[breaks] = 0
	}
	s.count++
	r := &response{sub: sub, version: n.version, flight: &flight{nonce: strconv.Itoa(s.count), since: view.Since,
		asked: n.asked, changed: n.changed}}
	version := n.version
	sub.at = pace.Now()
	if s.delta && s.server.o.Stamped {
		version = fmt.Sprintf(stampFormat, n.version, view.Since, sub.at)
	}
	r.encode(s.delta, version, n.resources, n.removed)
	sub.sends(r.flight)
	if sub.head = int64(r.parts[0].Len()); n.asked {
		s.debt.Add(int64(r.parts.Len()))
	}
	return r
}

func (s *stream) send(r *response) error {
	if s.server.o.OnSent != nil {
		s.server.o.OnSent(Sent{TypeURL: r.sub.url, Nonce: r.nonce, Resources: r.resources, Removed: r.removed, Time: r.sub.at,
			Node: s.node, Since: r.since, Asked: r.asked})
	}
	return s.g.SendMsg(r)
}
