package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"tare/internal/lib/fault"
	"tare/internal/lib/limit/handshake"
	"tare/internal/lib/pace"
)

// Agent configures an agent. A duration of 0 selects the default in the field's comment.
type Agent struct {
	Hello       Hello
	Address     string // the coordinator's address, host:port
	Credentials Credentials
	Patience    time.Duration      // how long it tries to join, both at first and after the connection breaks; 1 min
	Silence     time.Duration      // how long until a silent coordinator is considered gone; 6 s
	Said        func(event string) // called with a description of each event, for people; may be nil

	now func() int64 // this machine's clock, ns; tests use another
}

// Barrier waits until every node has set up its part, and returns the trial's start time by this machine's
// CLOCK_MONOTONIC, in nanoseconds.
type Barrier = func(context.Context) (begin int64, err error)

// Runner runs one trial. It calls the barrier when everything is set up. When it returns, even with an error, nothing
// of the trial is left. It may return a record together with the error of a failed trial.
type Runner func(ctx context.Context, job Job, barrier Barrier) (record json.RawMessage, err error)

// ErrAbandoned ends a trial that the coordinator no longer waits for.
var ErrAbandoned = errors.New("the coordinator has abandoned the trial")

// errLost ends a trial whose coordinator cannot be reached.
var errLost = errors.New("the coordinator cannot be reached")

// errEnded ends a trial whose agent received a signal to end.
var errEnded = errors.New("the agent was told to end")

const (
	joinPause   = 200 * time.Millisecond // between two attempts to join, at first
	joinPauseTo = 2 * time.Second
	dialTimeout = 5 * time.Second
	// maxLead bounds the time from the announcement of a start until that start; the coordinator needs 2 ms for each node.
	// maxQuiet is longer than any trial's warm-up and window.
	maxLead  = time.Minute
	maxQuiet = 2 * time.Hour
)

// Join runs the trials of one run, from when the coordinator can be reached until it says that the run is over. When
// the connection breaks, it takes down the current trial and joins again. The error has the code fault.Usage if the
// coordinator refuses this agent, and fault.Machine if it could not be reached within Patience.
func (a Agent) Join(ctx context.Context, run Runner) error {
	config, err := a.Credentials.client()
	if err != nil {
		return err
	}
	a.Patience, a.Silence = cmp.Or(a.Patience, time.Minute), cmp.Or(a.Silence, 6*time.Second)
	if a.now == nil {
		a.now = pace.Now
	}
	if a.Said == nil {
		a.Said = func(string) {}
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second,
		Interval: time.Second, Count: 3}}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(handshake.Then(credentials.NewTLS(config), slowed)), grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		// MinConnectTimeout includes the TLS handshake.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialTimeout}),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(maxFromCoordinator),
			grpc.MaxCallSendMsgSize(maxFromAgent)),
		grpc.WithMaxHeaderListSize(16 << 10), grpc.WithStaticStreamWindowSize(maxShort),
		grpc.WithStaticConnWindowSize(maxShort),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}),
	}
	since, pause := time.Now(), joinPause
	for {
		joined, err := a.once(ctx, options, run)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			return nil
		case refused(err):
			return fault.Wrap(words(err), fault.Usage, a.Address, refusalHint(err), "the coordinator refuses this node")
		}
		if joined {
			a.Said("the connection broke: " + words(err).Error())
			since, pause = time.Now(), joinPause
		}
		if time.Since(since) > a.Patience {
			return fault.Wrap(words(err), fault.Machine, a.Address,
				"see whether 'tare run' is waiting for nodes there, and whether a firewall is between",
				"the coordinator could not be reached for %v", a.Patience)
		}
		if err := pace.Sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, joinPauseTo)
	}
}

// refused reports whether a retry would be useless.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
		return true
	case codes.Unavailable: // TLS errors are available only as text
		return strings.Contains(err.Error(), "tls: ") || strings.Contains(err.Error(), "x509: ")
	}
	return false
}

func refusalHint(err error) string {
	switch status.Code(err) {
	case codes.FailedPrecondition:
		return "install the same build of tare on both sides"
	case codes.PermissionDenied:
		return "give the node the name that its certificate was made for"
	}
	if strings.Contains(err.Error(), "expired") {
		return renewHint
	}
	return "both sides need keys of one authority, which are valid at both clocks: 'tare node keys' makes them"
}

// words returns err without gRPC's wrapping.
func words(err error) error {
	if s, ok := status.FromError(err); ok && s.Message() != "" {
		return errors.New(s.Message())
	}
	return err
}

// session is one stream of an agent.
type session struct {
	a      *Agent
	stream grpc.ClientStream
	cancel context.CancelCauseFunc // ends the session
	heard  atomic.Int64            // when the coordinator last sent anything, ns by pace.Now
	quiet  atomic.Int64            // the coordinator sends nothing before this time, ns by the agent's clock
	sendMu sync.Mutex

	run   Runner
	trial *agentTrial // the current or last trial
}

// agentTrial is a trial at this node.
type agentTrial struct {
	id     uint64
	begin  chan int64 // receives the start time, ns by the agent's clock
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing of the trial is left and its record was sent
}

// once makes one connection and serves it until it ends. err is nil if the run is over. joined reports whether the
// coordinator accepted the agent.
func (a *Agent) once(ctx context.Context, options []grpc.DialOption, run Runner) (joined bool, err error) {
	cc, err := grpc.NewClient("passthrough:///"+a.Address, options...)
	if err != nil {
		return false, fmt.Errorf("connecting to %s: %w", a.Address, err)
	}
	defer cc.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := cc.NewStream(ctx, &joinStream, joinMethod)
	if err != nil {
		return false, err
	}
	s := &session{a: a, stream: stream, run: run, cancel: cancel}
	s.heard.Store(pace.Now())
	if err := s.send(&message{Hello: &a.Hello}); err != nil {
		return false, s.ended(err)
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() { s.watch(ctx, cancel) })
	defer s.abandon(errLost)
	for {
		m := new(message)
		if err := stream.RecvMsg(m); err != nil {
			return joined, lostOr(ctx, err)
		}
		received := a.now()
		s.heard.Store(pace.Now())
		if !joined {
			joined = true
			a.Said("joined " + a.Address)
		}
		if m.Bye != nil {
			return true, nil
		}
		if err := s.handle(ctx, m, received); err != nil {
			return true, lostOr(ctx, s.ended(err))
		}
	}
}

// lostOr returns the cause of ctx's end if this side ended the session because it lost the coordinator, and err
// otherwise.
func lostOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errLost) {
		return cause
	}
	return err
}

// ended replaces the io.EOF of a failed write with the reason for the end of the stream, which only a read reveals.
func (s *session) ended(err error) error {
	if errors.Is(err, io.EOF) {
		for err = nil; err == nil; {
			err = s.stream.RecvMsg(new(message))
		}
	}
	return err
}

func (s *session) send(m *message) error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if m.Pong != nil {
		m.Pong.Sent = s.a.now()
	}
	// A coordinator that reads nothing would block the agent forever, even if it sends pings.
	timer := time.AfterFunc(s.a.Silence, func() {
		s.cancel(fmt.Errorf("%w: it has not read its messages for %v", errLost, s.a.Silence))
	})
	defer timer.Stop()
	return s.stream.SendMsg(m)
}

// watch ends the session when the coordinator has been silent for too long. It counts ticks, so time in which this
// process did not run is not counted as silence.
func (s *session) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	const looks = 8
	tick := time.NewTicker(s.a.Silence / looks)
	defer tick.Stop()
	var heard int64
	for silent := 0; silent <= looks; silent++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if last := s.heard.Load(); last != heard || s.a.now() < s.quiet.Load() {
				heard, silent = last, 0
			}
		}
	}
	cancel(fmt.Errorf("%w: it has said nothing for %v", errLost,
		time.Duration(pace.Now()-heard).Round(100*time.Millisecond)))
}

// handle processes a message from the coordinator. received is the time of its arrival, ns by the agent's clock.
func (s *session) handle(ctx context.Context, m *message, received int64) error {
	switch {
	case m.Ping != nil:
		return s.send(&message{Pong: &pong{Ping: *m.Ping, Received: received}})
	case m.Prepare != nil:
		s.abandon(ErrAbandoned) // the coordinator may have abandoned the previous trial before it ended here
		s.start(ctx, *m.Prepare)
	case m.Begin != nil && s.trial != nil && s.trial.id == m.Begin.ID:
		if lead := m.Begin.At - s.a.now(); m.Begin.At < -farthest || m.Begin.At > farthest || lead > int64(maxLead) ||
			m.Begin.Quiet < 0 {
			s.trial.cancel(fmt.Errorf("the coordinator announced a start that cannot be: in %v", time.Duration(lead)))
			return nil
		}
		s.quiet.Store(m.Begin.At + min(m.Begin.Quiet, int64(maxQuiet)))
		select {
		case s.trial.begin <- m.Begin.At:
		default: // the trial has its start time already
		}
	case m.Abandon != nil && s.trial != nil && s.trial.id == m.Abandon.ID:
		s.trial.cancel(ErrAbandoned) // the trial's record will tell the coordinator that nothing is left of the trial
	}
	return nil
}

func (s *session) start(ctx context.Context, job Job) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := &agentTrial{id: job.ID, begin: make(chan int64, 1), cancel: cancel, done: make(chan struct{})}
	s.trial = t
	barrier := func(ctx context.Context) (int64, error) {
		if err := s.send(&message{Prepared: &trialID{job.ID}}); err != nil {
			return 0, fmt.Errorf("saying that the trial is set up: %w", err)
		}
		select {
		case at := <-t.begin:
			return at, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	go func() { // abandon waits until this ends
		defer close(t.done)
		defer cancel(nil)
		record, err := s.run(ctx, job, barrier)
		r := &result{ID: job.ID, Record: record}
		if errors.Is(err, context.Canceled) {
			err = errEnded
		}
		if err != nil {
			r.Error = err.Error()
			s.a.Said("the trial failed: " + r.Error)
		}
		_ = s.send(&message{Record: r}) // if this fails, the stream has ended, which its reader notices
	}()
}

// abandon ends the current trial, if any, and waits until nothing is left of it.
func (s *session) abandon(why error) {
	if s.trial == nil {
		return
	}
	s.trial.cancel(why)
	<-s.trial.done
	s.trial = nil
}
