package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// Options configures a coordinator. A duration of 0 selects the default in the field's comment.
type Options struct {
	Version     string // tare's version, with its build; agents with another version are refused
	Credentials Credentials

	Heartbeat time.Duration // between two pings of an agent, except while a trial is measured; 1 s
	Silence   time.Duration // how long until a silent agent is considered gone; 3 s
	Prepare   time.Duration // how long the setup of a trial may take; 90 s
	Record    time.Duration // how long after the scheduled end of a trial its record may arrive; 90 s
	Send      time.Duration // how long an agent may take to read a message; 10 s
	Lead      time.Duration // from announcing a start time to that time, plus 2 ms for each node; 150 ms
}

func (o Options) withDefaults() Options {
	o.Heartbeat = cmp.Or(o.Heartbeat, time.Second)
	o.Silence = cmp.Or(o.Silence, 3*time.Second)
	o.Prepare = cmp.Or(o.Prepare, 90*time.Second)
	o.Record = cmp.Or(o.Record, 90*time.Second)
	o.Send = cmp.Or(o.Send, 10*time.Second)
	o.Lead = cmp.Or(o.Lead, 150*time.Millisecond)
	return o
}

const (
	helloTimeout   = 5 * time.Second        // from the connection until the agent's hello
	abandonTimeout = 15 * time.Second       // how long an agent may take to take down an abandoned trial
	leadPerNode    = 2 * time.Millisecond   // time to announce the start time to one more agent
	clockReadings  = 8                      // readings of each node's clock before each trial
	clockTimeout   = 500 * time.Millisecond // limit for one reading; a busy machine takes a few milliseconds
	idleTimeout    = 2 * helloTimeout       // how long until a connection without a stream is closed
	maxWords       = 4 << 10                // bytes of an error message from an agent
)

// MaxNodes is the largest number of agents that a coordinator accepts.
const MaxNodes = 10_000

// Coordinator manages the agents of one run. Its methods may be called concurrently, except Run: there is only one
// trial at a time.
type Coordinator struct {
	o       Options
	server  *grpc.Server
	limiter *connLimiter
	quiet   atomic.Int64   // agents are not pinged before this time, ns by pace.Now
	wg      sync.WaitGroup // counts the goroutines that serve and read
	trials  uint64

	mu      sync.Mutex
	nodes   map[string]*node
	lost    map[string]error // why an absent node is gone, by name
	changed chan struct{}    // closed at the next change of nodes
	closing bool
}

// NewCoordinator returns a coordinator, which accepts no connections before Listen. The caller must close it.
func NewCoordinator(o Options) (*Coordinator, error) {
	config, err := o.Credentials.server()
	if err != nil {
		return nil, err
	}
	c := &Coordinator{o: o.withDefaults(), nodes: map[string]*node{}, lost: map[string]error{},
		changed: make(chan struct{}), limiter: newConnLimiter()}
	c.server = grpc.NewServer(grpc.Creds(limitedCredentials{credentials.NewTLS(config), c.limiter}),
		grpc.ForceServerCodec(codec{clean: true}),
		grpc.MaxRecvMsgSize(maxFromAgent), grpc.StaticStreamWindowSize(maxShort), grpc.StaticConnWindowSize(maxShort),
		grpc.ConnectionTimeout(helloTimeout), grpc.MaxConcurrentStreams(1), grpc.MaxHeaderListSize(16<<10),
		grpc.InTapHandle(boundStreams),
		grpc.WaitForHandlers(true),
		// Detects dead connections that have no agent.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second,
			MaxConnectionIdle: idleTimeout}))
	c.server.RegisterService(&service, c)
	return c, nil
}

// Listen starts to accept agents at an address (host:port), and returns the actual address. It can be called for
// several addresses.
func (c *Coordinator) Listen(address string) (net.Addr, error) {
	l, err := limit.TCP(context.Background(), address)
	if err != nil {
		return nil, fmt.Errorf("nodes cannot join: %w", err)
	}
	// Serve returns when the server stops. If the listener fails earlier, agents cannot join, which Wait reports.
	c.wg.Go(func() { _ = c.server.Serve(c.limiter.at(l)) })
	return l.Addr(), nil
}

// Close tells the agents that the run is over, and ends all streams.
func (c *Coordinator) Close() {
	c.mu.Lock()
	c.closing = true
	for _, n := range c.nodes {
		n.leave()
	}
	c.mu.Unlock()
	done := make(chan struct{})
	go func() { c.server.GracefulStop(); close(done) }()
	select {
	case <-done:
	case <-time.After(c.o.Silence): // some agent has not closed its stream
	}
	c.server.Stop()
	<-done
	c.wg.Wait()
}

// Nodes returns the agents that are present, in order of name.
func (c *Coordinator) Nodes() []Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return hellos(c.nodes)
}

// hellos returns the hellos of the nodes that are present, in order of name. A node whose stream is about to end does
// not count as present.
func hellos(nodes map[string]*node) (there []Hello) {
	for _, n := range lists.ByKey(nodes) {
		if !n.isGone() {
			there = append(there, n.hello)
		}
	}
	return there
}

// Wait waits up to timeout until count agents are present. If there are more, it returns the first count in order of
// name. It calls joined with the number present whenever that may have changed. If the time is over first, the error
// has the code fault.Machine and names the agents that are present.
func (c *Coordinator) Wait(ctx context.Context, count int, timeout time.Duration,
	joined func(int)) (there []Hello, err error) {
	err = c.wait(ctx, timeout, func(nodes map[string]*node) error {
		all := hellos(nodes)
		joined(len(all))
		if len(all) >= count {
			there = all[:count]
			return nil
		}
		names := lists.Map(all, func(h Hello) string { return h.Name })
		return fault.New(fault.Machine, "", "see what 'tare node' says there, whether the address can be reached, and "+
			"whether the keys are of one authority",
			"%d of %d nodes have joined within %v: %s", len(all), count, timeout,
			cmp.Or(strings.Join(names, ", "), "none"))
	})
	return there, err
}

// WaitFor waits up to timeout for the agent with the given name.
func (c *Coordinator) WaitFor(ctx context.Context, name string, timeout time.Duration) error {
	return c.wait(ctx, timeout, func(nodes map[string]*node) error {
		if n := nodes[name]; n != nil && !n.isGone() {
			return nil
		}
		return fmt.Errorf("%s has not joined within %v", name, timeout)
	})
}

func (c *Coordinator) wait(ctx context.Context, timeout time.Duration, missing func(map[string]*node) error) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		c.mu.Lock()
		changed, err := c.changed, missing(c.nodes)
		c.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Gone returns why the named node is absent, or nil if it is present.
func (c *Coordinator) Gone(name string) error {
	_, why := c.node(name)
	return why
}

// node returns the named node, or why it is absent.
func (c *Coordinator) node(name string) (*node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[name]
	if n == nil {
		if why := c.lost[name]; why != nil {
			return nil, why
		}
		return nil, errors.New("it has never joined")
	}
	if n.isGone() { // its stream is about to end
		return nil, n.why
	}
	return n, nil
}

// Drop marks the named node as gone, for a reason that the coordinator cannot see from the node's stream.
func (c *Coordinator) Drop(name string, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[name]; n != nil {
		n.end(why)
		return
	}
	c.lost[name] = why
}

// join serves one agent's stream. Only this goroutine writes to the stream, and only one other reads from it.
func (c *Coordinator) join(stream grpc.ServerStream) error {
	n := newNode()
	name, hangUp := "", func() {}
	if info, ok := visitorOf(stream.Context()); ok {
		name, hangUp = commonName(info.State), func() { info.visitor.Close() }
	}
	n.hangUp = hangUp
	c.wg.Go(func() { n.read(stream) })
	timer := time.NewTimer(helloTimeout)
	defer timer.Stop()
	select {
	case m := <-n.said:
		if m.Hello == nil {
			return status.Errorf(codes.InvalidArgument, "the first message is %s, not a hello", m.what())
		}
		n.hello = m.Hello.clean()
	case <-n.gone:
		return status.Error(codes.Canceled, n.why.Error())
	case <-timer.C:
		return status.Errorf(codes.DeadlineExceeded, "no hello came within %v", helloTimeout)
	}
	if err := c.admit(name, n); err != nil {
		n.end(err)
		return err
	}
	defer c.remove(n)
	return n.serve(stream, c)
}

// admit registers an agent. After most errors of admit, the agent gives up. It tries again if its name is still taken,
// perhaps by an earlier connection that is not yet known to be gone, or if there are too many nodes.
func (c *Coordinator) admit(name string, n *node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case name != n.hello.Name:
		return status.Errorf(codes.PermissionDenied, "the certificate is for a node %q, and the agent calls itself %q", name,
			clip(n.hello.Name))
	case n.hello.Version != c.o.Version:
		return status.Errorf(codes.FailedPrecondition,
			"the agent is of tare %s, and the run of tare %s: both must be the same build", clip(n.hello.Version), c.o.Version)
	case c.closing:
		return status.Error(codes.FailedPrecondition, "the run is over")
	case len(c.nodes) >= MaxNodes:
		return status.Errorf(codes.ResourceExhausted, "there are %d nodes already", MaxNodes)
	case c.nodes[name] != nil:
		return status.Errorf(codes.AlreadyExists, "a node %s has already joined", name)
	}
	c.nodes[name] = n
	c.hasChanged()
	return nil
}

func (c *Coordinator) remove(n *node) {
	n.end(errors.New("its stream has ended"))
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, n.hello.Name)
	c.lost[n.hello.Name] = n.why
	c.hasChanged()
}

func (c *Coordinator) hasChanged() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// clip shortens a peer's text for use in a message.
func clip(s string) string { return text.ClipLine(s, 80) }

// Outcome is one node's result of a trial.
type Outcome struct {
	Name   string
	Clock  *Offset         // the offset of the node's clock just before the start; nil: it was not read
	Begin  int64           // announced start time by the node's clock, ns; 0: none was announced
	Record json.RawMessage // nil: none arrived
	Failed error           // why there is no record of a complete trial
}

// Run runs a trial on the named nodes and returns their outcomes in the order of names. length is the time from the
// start of the trial to the end of its loads, and tail the longest time from then to the end of the trial. Nodes that
// are absent or fail before the start do not stop the others. Once every node is prepared or has failed, Run calls
// begun with the start time by this machine's CLOCK_MONOTONIC (nanoseconds), unless no node is prepared. This call may
// take as long as the trial. When the context ends, the trial is abandoned at all nodes.
func (c *Coordinator) Run(ctx context.Context, names []string, share Share, data json.RawMessage, length,
	tail time.Duration, begun func(at int64)) []Outcome {
	c.trials++
	job := Job{ID: c.trials, Share: share, Data: data}
	parts := make([]*part, len(names))
	for i, name := range names {
		n, why := c.node(name)
		parts[i] = &part{c: c, Outcome: Outcome{Name: name}, job: &job, node: n}
		if why != nil {
			parts[i].Failed = fmt.Errorf("it is not connected: %w", why)
		}
	}
	each(parts, func(p *part) { p.prepare(ctx) })
	each(parts, func(p *part) { p.readClock(ctx) })
	at := pace.Now() + int64(c.o.Lead) + int64(len(names))*int64(leadPerNode)
	each(parts, func(p *part) { p.begin(at, length) })
	c.quiet.Store(at + int64(length))
	begins := slices.ContainsFunc(parts, func(p *part) bool { return !p.over() })
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		each(parts, func(p *part) { p.finish(ctx, time.Duration(at-pace.Now())+length+tail+c.o.Record) })
	}()
	if begins && ctx.Err() == nil {
		begun(at)
	}
	<-finished
	return lists.Map(parts, func(p *part) Outcome { return p.Outcome })
}

// each calls do concurrently for the parts that are not over, and waits for all calls.
func each(parts []*part, do func(*part)) {
	var wg sync.WaitGroup
	for _, p := range parts {
		if !p.over() {
			wg.Go(func() { do(p) })
		}
	}
	wg.Wait()
}

// part is one node's part of a trial.
type part struct {
	Outcome
	c        *Coordinator
	job      *Job
	node     *node
	prepared bool
	ends     int64 // earliest time at which a complete record can arrive, ns by pace.Now; 0: not begun
}

func (p *part) over() bool { return p.Failed != nil || p.Record != nil }

// prepare tells the node to set the trial up, and waits until it is ready to begin or its trial is over.
func (p *part) prepare(ctx context.Context) {
	p.node.send(&message{Prepare: p.job})
	p.await(ctx, "set the trial up", p.c.o.Prepare)
}

// await waits for the node's next message about the trial. If it comes too late, the trial is abandoned at the node.
func (p *part) await(ctx context.Context, to string, timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case m := <-p.node.said:
			if p.take(m) {
				return
			}
			continue
		case <-p.node.gone:
			p.lastWords()
			return
		case <-timer.C:
			p.Failed = fmt.Errorf("it did not %s within %v", to, timeout.Round(time.Second))
		case <-ctx.Done():
			p.Failed = context.Cause(ctx)
		}
		p.abandon()
		return
	}
}

// take processes a message, and reports whether to stop waiting: m is the awaited message, or it ends the trial. Late
// messages about an earlier, abandoned trial are ignored.
func (p *part) take(m *message) bool {
	switch {
	case m.Prepared != nil && m.Prepared.ID == p.job.ID && !p.prepared:
		p.prepared = true
	case m.Prepared != nil && m.Prepared.ID < p.job.ID, m.Record != nil && m.Record.ID < p.job.ID:
		return false
	case m.Record != nil && m.Record.ID == p.job.ID:
		p.Record = m.Record.Record
		switch {
		case m.Record.Error != "":
			p.Failed = errors.New(text.ClipLine(m.Record.Error, maxWords))
		case p.Record == nil:
			p.Failed = errors.New("it sent an empty record")
		case !p.prepared:
			p.Failed = errors.New("it ended before it was set up")
		case p.ends == 0 || pace.Now() < p.ends:
			p.Failed = errors.New("it sent its record before the trial was over")
			p.node.end(p.Failed)
		}
	default:
		p.Failed = fmt.Errorf("it sent %s in the middle of trial %d", m.what(), p.job.ID)
		p.node.end(p.Failed)
	}
	return true
}

// lastWords processes the record that the node may have sent before it was gone. If there is none, the node's trial has
// failed.
func (p *part) lastWords() {
	for {
		select {
		case m := <-p.node.said:
			if m.Record != nil && p.take(m) {
				return
			}
			continue
		default:
		}
		p.Failed = fmt.Errorf("it disconnected: %w", p.node.why)
		return
	}
}

// abandon tells the node to take the trial down, and waits until it has, so the next trial finds a clean machine.
func (p *part) abandon() {
	p.node.send(&message{Abandon: &trialID{p.job.ID}})
	timer := time.NewTimer(abandonTimeout)
	defer timer.Stop()
	for {
		select {
		case m := <-p.node.said:
			if m.Record != nil && m.Record.ID == p.job.ID {
				p.Record = m.Record.Record // the record of a trial that was cut short
				return
			}
		case <-p.node.gone:
			return
		case <-timer.C:
			p.node.end(fmt.Errorf("it did not take trial %d down within %v", p.job.ID, abandonTimeout))
			return
		}
	}
}

// readClock reads the node's clock several times and keeps the offset with the smallest error bound. If every reading
// fails, it abandons the trial at the node.
func (p *part) readClock(ctx context.Context) {
	var readings []reading
	for range clockReadings {
		r, err := p.node.askTime(ctx, clockTimeout)
		if err == nil {
			readings = append(readings, r)
		}
	}
	if p.node.isGone() {
		p.lastWords()
		return
	}
	if len(readings) > 0 {
		p.Clock = new(best(readings))
		return
	}
	p.Failed = fmt.Errorf("its clock could not be read within %d times %v", clockReadings, clockTimeout)
	if ctx.Err() != nil {
		p.Failed = context.Cause(ctx)
	}
	p.abandon()
}

func (p *part) begin(at int64, length time.Duration) {
	p.Begin = at + int64(p.Clock.Ahead)
	p.ends = at + int64(length-length/1000-p.Clock.Error) // the node's clock may be a little faster
	p.node.send(&message{Begin: &begin{p.job.ID, p.Begin, int64(length)}})
}

func (p *part) finish(ctx context.Context, timeout time.Duration) {
	p.await(ctx, "send a record", timeout)
	if p.Failed == nil {
		p.Failed = p.suspended(ctx)
	}
}

// clockSlack is how far a node's clock may fall behind during a trial, besides a thousandth of the time and the errors
// of the readings. No machine is suspended for less.
const clockSlack = 10 * time.Millisecond

// suspended returns an error if the node's clock has fallen behind since it was read before the start. CLOCK_MONOTONIC
// stops while a machine is suspended, so the node's window was at another time than that of the other nodes. If the
// clock cannot be read, suspended returns nil: the node may go once it has sent its record.
func (p *part) suspended(ctx context.Context) error {
	r, err := p.node.askTime(ctx, clockTimeout)
	if err != nil {
		return nil //nolint:nilerr // the record is complete
	}
	now, since := r.offset(), time.Duration(pace.Now()-(p.Begin-int64(p.Clock.Ahead)))
	behind := p.Clock.Ahead - now.Ahead
	if behind <= p.Clock.Error+now.Error+clockSlack+since/1000 {
		return nil
	}
	return fmt.Errorf("its clock fell behind by %v after the trial was announced: its machine was suspended, and its "+
		"window was not that of the other nodes", behind.Round(time.Millisecond))
}
