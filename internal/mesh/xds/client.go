package xds

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
)

// Options configures a client. Only Address and Apply are required.
type Options struct {
	Address string // host:port, or unix:PATH
	Node    string // the id by which the control plane identifies the data plane; default "tare"
	// Metadata holds further information about the node for the control plane, by name. istiod requires ISTIO_VERSION, for
	// example.
	Metadata map[string]string
	// Own holds the addresses of the workload that the data plane represents to the control plane. Rules about who may
	// connect to the workload apply to these addresses.
	Own []netip.Addr

	StateOfTheWorld bool // use the state-of-the-world variant instead of deltas

	// Apply makes a change, completely or not at all. One goroutine calls it. If it returns a *fault.Error whose Where is
	// the name of a resource of the change, the client refuses that resource and tries the rest again. After any other
	// error, the client halves the change until each resource that causes an error is alone, and refuses these resources.
	Apply func(context.Context, mesh.Change) error
	// OnEvent is called for every response, when its answer (an acknowledgement or a refusal) has been handed to the
	// transport, or when the answer to a later response replaces its delayed refusal. If the stream ends first, OnEvent is
	// not called. OnState is called for every change of state. The client's own goroutines make these calls, one call of
	// each function at a time. Both functions must return quickly.
	OnEvent func(Event)
	OnState func(State)

	Resolver Resolver // for clusters with host names; default SystemResolver
	Limits   Limits
	Timeouts Timeouts
}

// Limits bounds what the client keeps of what a control plane sends. The zero value means the defaults, with which the
// client uses less than 256 MiB, whatever a control plane sends (TestAttacks).
type Limits struct {
	// Message is the maximum length of a response in bytes; default 32 MiB. A longer one ends the stream. Two copies of a
	// response exist for a moment.
	Message int
	// Resource is the maximum length of a resource in bytes; default 8 MiB. A resource that would take more than
	// translate.MaxDecoded when decoded is refused as well.
	Resource int
	// Resources is the maximum number of resources of each type; default 131072. A response with more than
	// 2*Resources+1024 resources and removed names ends the stream. In shorter responses, the resources beyond the maximum
	// are refused individually.
	Resources int
	// Bytes is the maximum memory of all resources, in bytes; default 128 MiB. It counts their decoded form (as
	// translate.Weigh does, but endpoints as translate.Assignment.Bytes), their names and versions, and 512 bytes more for
	// each resource.
	Bytes int
}

// entries is the maximum number of resources and removed names in a response. A response that replaces all resources
// has twice as many entries as the client keeps.
func (l Limits) entries() int { return 2*l.Resources + 1024 }

// Timeouts configures how long the client waits. The zero value means the defaults.
type Timeouts struct {
	Connect time.Duration // until a stream is open; default 10 s
	Answer  time.Duration // until the first response, if the client has never received one; default 30 s
	Send    time.Duration // until the control plane accepts a request; default 10 s
	// Reconnect is the wait before the second attempt. Each further wait is twice as long, up to ReconnectMax; a random
	// part of each wait, up to half, is subtracted. The defaults are 200 ms and 30 s.
	//
	// Only a stream on which something was received shortens the waits. After such a stream, if it lasted longer than the
	// wait before it, the waits start from the beginning; otherwise, the next wait is at most 8 times Reconnect. If the
	// control plane refused a request, or sent something unacceptable, the next stream would end in the same way, so the
	// waits start from the beginning only if the stream lasted longer than ReconnectMax.
	Reconnect, ReconnectMax time.Duration
}

func (o Options) withDefaults() Options {
	if o.Node == "" {
		o.Node = "tare"
	}
	if o.Resolver == nil {
		o.Resolver = SystemResolver
	}
	orDefault(&o.Limits.Message, 32<<20)
	orDefault(&o.Limits.Resource, 8<<20)
	orDefault(&o.Limits.Resources, 1<<17)
	orDefault(&o.Limits.Bytes, 128<<20)
	orDefault(&o.Timeouts.Connect, 10*time.Second)
	orDefault(&o.Timeouts.Answer, 30*time.Second)
	orDefault(&o.Timeouts.Send, 10*time.Second)
	orDefault(&o.Timeouts.Reconnect, 200*time.Millisecond)
	orDefault(&o.Timeouts.ReconnectMax, 30*time.Second)
	return o
}

func orDefault[T int | time.Duration](v *T, missing T) {
	if *v <= 0 {
		*v = missing
	}
}

// Phase is the client's relation to its control plane.
type Phase uint8

// The phases. Each data plane decides what to do with connections while it has no configuration, or an old one.
const (
	Never     Phase = iota // nothing was ever received
	Connected              // a stream is open, and something was received on it or on an earlier one
	Stale                  // something was received, but no stream is open
)

func (p Phase) String() string { return [...]string{"never connected", "connected", "stale"}[p] }

// State holds the phase, when it began, and, for Never and Stale, the reason.
type State struct {
	Phase Phase
	Since time.Time
	Err   error // why the last stream ended or could not be opened; nil if Connected, and at first
}

// Event describes one response. Times are nanoseconds by pace.Now (CLOCK_MONOTONIC).
type Event struct {
	Kind     Kind
	Version  string
	Changed  int                  // resources that are new or have changed
	Warned   []*translate.Warning // parts of accepted resources that the client does not honour
	Refused  []error              // why resources were refused, at most 10,000; empty: the response was acknowledged
	Received int64                // when the whole response had arrived
	Decoded  int64                // when it had been decoded and checked
	Applied  int64                // when Apply had made as much as possible of the change
	Acked    int64                // when its acknowledgement or refusal was handed to the transport; 0: it was replaced
}

// Metrics counts the resources that wait for others now.
type Metrics struct {
	WaitingClusters int // clusters that wait for their first endpoints
	WaitingRoutes   int // routes that a listener needs and that have not been received
	Waiting         int // listeners that wait for clusters or for their address
}

// Complete reports whether no resource waits: all counts are 0.
func (m Metrics) Complete() bool { return m.WaitingClusters+m.WaitingRoutes+m.Waiting == 0 }

// Client keeps a store up to date with a control plane. New makes one.
type Client struct {
	o     Options
	state *state
	conn  *conn // nil between streams
	names resolving

	versions [kinds]string        // state of the world: the last versions that were accepted completely
	named    [kinds][]string      // the names that the client subscribes to, in order
	failures int                  // the next wait is Reconnect * 2^failures, up to ReconnectMax
	wait     time.Duration        // the wait before the current stream
	begun    map[string]time.Time // by hungry cluster: when it began to wait for endpoints
	pacer    pacer
	applying time.Duration // the time that Apply has taken

	mu      sync.Mutex
	status  State
	metrics Metrics
	events  sync.Mutex // one OnEvent at a time
}

// New makes a client, which does nothing until Run.
func New(o Options) (*Client, error) {
	if o.Address == "" {
		return nil, fault.New(fault.Usage, "address", "name the control plane as host:port or unix:PATH",
			"there is no address of a control plane")
	}
	if o.Apply == nil {
		return nil, fault.New(fault.Internal, "xds", "", "Options.Apply is missing")
	}
	o = o.withDefaults()
	c := &Client{o: o, state: newState(o.Limits), names: newResolving(o.Resolver), begun: map[string]time.Time{},
		status: State{Phase: Never, Since: time.Now()}}
	c.state.serving.own = o.Own
	return c, nil
}

// State returns the current state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Metrics returns the current counts.
func (c *Client) Metrics() Metrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metrics
}

// maxQueue is the number of requests that may wait to be sent before the client stops reading responses.
const maxQueue = 64

// tick is the interval at which the client checks its time limits, while it has any.
const tick = 50 * time.Millisecond

// Run keeps the store up to date with the control plane until ctx ends, and then returns nil. Nothing that the control
// plane does ends it. When Run returns, all goroutines of the client have ended, except look-ups of host names in
// progress, which end with ctx.
func (c *Client) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer c.leave()
	retry := time.NewTimer(0)
	defer retry.Stop()
	clock := time.NewTicker(tick)
	defer clock.Stop()
	ticking := true
	for {
		if want := c.waits(); want != ticking {
			if ticking = want; want {
				clock.Reset(tick)
			} else {
				clock.Stop()
			}
		}
		var in <-chan *response
		var out chan<- *request
		var ended <-chan error
		var opened <-chan struct{}
		var head *request
		if c.conn != nil {
			ended = c.conn.ended
			if !c.conn.open {
				opened = c.conn.opened
			}
			if len(c.conn.queue) < maxQueue && !c.pacer.rests(time.Now()) {
				in = c.conn.in
			}
			if len(c.conn.queue) > 0 {
				out, head = c.conn.out, c.conn.queue[0]
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
			c.connect(ctx)
		case r := <-in:
			began, applying := time.Now(), c.applying
			if err := c.handle(ctx, r); err != nil {
				return c.end(ctx, err)
			}
			if r.handled != nil {
				close(r.handled)
			}
			c.pacer.worked(time.Now(), r.decoding+time.Since(began)-(c.applying-applying))
		case <-opened:
			c.conn.open = true
			if c.State().Phase == Stale { // a control plane without changes need not answer
				c.setState(Connected, nil)
			}
		case out <- head:
			c.conn.queue = c.conn.queue[1:]
		case err := <-ended:
			retry.Reset(c.lost(err))
		case a := <-c.names.answers:
			if err := c.resolved(ctx, a); err != nil {
				return c.end(ctx, err)
			}
		case <-clock.C:
			if err := c.look(ctx); err != nil {
				return c.end(ctx, err)
			}
		}
	}
}

// end returns nil if ctx has ended, because any error is then a consequence of that, and otherwise err.
func (c *Client) end(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// leave ends the stream and waits for its end.
func (c *Client) leave() {
	if c.conn != nil {
		c.conn.cancel()
		<-c.conn.ended
		c.conn = nil
	}
}

func (c *Client) setState(p Phase, err error) {
	c.mu.Lock()
	if c.status.Phase != p {
		c.status.Since = time.Now()
	} else if err == nil && c.status.Err == nil {
		c.mu.Unlock()
		return
	}
	c.status.Phase, c.status.Err = p, err
	s := c.status
	c.mu.Unlock()
	if c.o.OnState != nil {
		c.o.OnState(s)
	}
}

// connect opens a stream and queues its first requests.
func (c *Client) connect(ctx context.Context) {
	c.conn = open(ctx, &c.o, c.sent)
	for _, k := range c.state.kinds() {
		c.subscribe(k)
	}
}

// subscribe subscribes to a type on a new stream.
func (c *Client) subscribe(k Kind) {
	if !c.state.lists(k) {
		if c.named[k] = c.state.names(k); len(c.named[k]) == 0 {
			return // a request without names would ask for all resources
		}
	}
	c.conn.asked[k] = true
	if c.o.StateOfTheWorld {
		c.askAll(&request{kind: k, version: c.versions[k], names: c.named[k]})
		return
	}
	for _, name := range c.named[k] {
		c.conn.subscribed[k][name] = true
	}
	c.conn.queue = append(c.conn.queue, subscriptions(k, c.named[k], c.state.versions(k), maxRequest)...)
}

// maxRequest bounds the names and versions of a request, in bytes. By default servers accept messages of 4 MiB, and a
// refusal in the same request may take maxReasons.
const maxRequest = 4<<20 - maxReasons - 64<<10

// The maximum overhead of a name, and of an entry in the map of versions, in a request, in bytes.
const (
	aroundName    = 6
	aroundVersion = 16
)

// subscriptions returns the first requests for a type on a stream of deltas: for the given names, or for all resources
// if there are none, with the versions that the client has. Only the very first request can have versions. Resources
// whose versions do not fit into it are requested by name in further requests, even if all resources are requested: the
// control plane then sends them again, or reports that they are gone.
func subscriptions(k Kind, names []string, versions map[string]string, room int) []*request {
	all := len(names) == 0
	if all {
		names = slices.Sorted(maps.Keys(versions))
	}
	q := &request{kind: k}
	queue := []*request{q}
	left := room
	for _, name := range names {
		version, has := versions[name]
		byName, byVersion := len(name)+aroundName, len(name)+len(version)+aroundVersion
		need := 0
		if first := len(queue) == 1; first && has {
			need += byVersion
		}
		if len(queue) > 1 || !all {
			need += byName
		}
		if need > left {
			if all {
				queue[0].subscribe = []string{"*"}
			}
			q = &request{kind: k}
			queue = append(queue, q)
			left, need = room, byName
		}
		left -= need
		if len(queue) > 1 || !all {
			q.subscribe = append(q.subscribe, name)
		}
		if len(queue) == 1 && has {
			if q.versions == nil {
				q.versions = make(map[string]string, len(versions))
			}
			q.versions[name] = version
		}
	}
	return queue
}

// askAll queues a request that subscribes to all wanted resources of a type at once, as the state-of-the-world variant
// requires. If the names exceed maxRequest, askAll ends the stream.
func (c *Client) askAll(q *request) {
	if err := fits(q.kind, q.names, maxRequest); err != nil {
		c.conn.fail(err)
		return
	}
	c.conn.queue = append(c.conn.queue, q)
}

func fits(k Kind, names []string, room int) error {
	n := 0
	for _, name := range names {
		n += len(name) + aroundName
	}
	if n > room {
		return fmt.Errorf("the names of %d %s have %d bytes, and a request can have %d: use deltas, which request them in "+
			"parts", len(names), k, n, room)
	}
	return nil
}

// lost records that the stream has ended, and returns how long to wait before opening the next.
func (c *Client) lost(err error) time.Duration {
	switch lasted := time.Since(c.conn.begun); {
	case c.conn.answered && lasted > c.o.Timeouts.ReconnectMax:
		c.failures = 0
	case !c.conn.answered || c.conn.why.Load() != nil || !transient(err):
	case lasted > c.wait:
		c.failures = 0
	default:
		c.failures = min(c.failures, 3)
	}
	c.conn = nil
	if c.State().Phase == Never {
		c.setState(Never, err)
	} else {
		c.setState(Stale, err)
	}
	wait := c.o.Timeouts.ReconnectMax
	if c.failures < 16 {
		wait = min(wait, c.o.Timeouts.Reconnect<<c.failures)
	}
	c.failures++
	c.wait = wait - rand.N(wait/2+1)
	return c.wait
}

// transient reports whether the next stream may do better, for example if a control plane has restarted, or limits the
// age of streams.
func transient(err error) bool {
	switch status.Code(err) {
	case codes.ResourceExhausted, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated,
		codes.Unimplemented,
		codes.Internal, codes.FailedPrecondition, codes.OutOfRange:
		return false
	}
	return true
}

// handle processes a response: it applies what is valid, refuses the rest, and answers the control plane.
func (c *Client) handle(ctx context.Context, r *response) error {
	k, known := KindOf(r.typeURL)
	if !known || !c.conn.asked[k] {
		return nil
	}
	c.conn.answered = true
	o := c.state.take(k, r, c.o.StateOfTheWorld)
	event := &Event{Kind: k, Version: r.version, Received: r.received, Decoded: pace.Now()}
	if err := c.settle(ctx, o); err != nil {
		return err
	}
	event.Applied, event.Changed = pace.Now(), o.changed
	event.Refused = sorted(o.refused)
	event.Warned = o.warned
	c.answer(k, r, event, o.more)
	c.follow()
	c.setState(Connected, nil)
	return nil
}

// sorted sorts refusals by their text, so that equal sets of refusals have equal text.
func sorted(refused []error) []error {
	type one struct {
		text string
		err  error
	}
	list := make([]one, len(refused))
	for i, err := range refused {
		list[i] = one{err.Error(), err}
	}
	slices.SortFunc(list, func(a, b one) int { return strings.Compare(a.text, b.text) })
	for i := range list {
		refused[i] = list[i].err
	}
	return refused
}

func (c *Client) settle(ctx context.Context, o *outcome) error {
	err := c.state.settle(func(change mesh.Change) error {
		began := time.Now()
		err := c.o.Apply(ctx, change)
		c.applying += time.Since(began)
		if ctx.Err() != nil {
			return errEnds
		}
		return err
	}, o)
	if err != nil {
		return err
	}
	hungry := c.state.hungry()
	for name := range hungry {
		if _, known := c.begun[name]; !known {
			c.begun[name] = time.Now()
		}
	}
	for name := range c.begun {
		if !hungry[name] {
			delete(c.begun, name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics = Metrics{len(hungry), c.state.serving.missing(), c.state.waiting()}
	return nil
}

// How long a repeated refusal is delayed, at first and at most. Without the delay, a control plane that answers a
// refusal by sending the same resources again would keep itself and the client busy.
const (
	firstHold = 50 * time.Millisecond
	maxHold   = time.Second
)

// answer acknowledges or refuses a response.
func (c *Client) answer(k Kind, r *response, event *Event, more int) {
	q := &request{kind: k, nonce: r.nonce, event: event, wrong: reason(event.Refused, more)}
	if q.wrong == "" {
		c.versions[k] = r.version
	}
	c.conn.nonces[k] = r.nonce
	if c.o.StateOfTheWorld {
		q.version, q.names = c.versions[k], c.named[k]
	}
	h := &c.conn.holds[k]
	if h.request != nil {
		c.report(h.request.event) // this answer replaces it
	}
	if q.wrong == "" || q.wrong != h.wrong {
		*h = hold{wrong: q.wrong}
		c.conn.queue = append(c.conn.queue, q)
		return
	}
	h.wait = min(max(2*h.wait, firstHold), maxHold)
	h.request, h.due = q, time.Now().Add(h.wait)
}

// follow subscribes to resources that are named in received ones: the endpoints of clusters, and the routes of
// listeners. It unsubscribes from those that are not named any more, because the resources that named them were removed
// or replaced. It does the same for host names.
func (c *Client) follow() {
	named, hosts := c.state.sweep()
	if len(hosts) > 0 {
		c.names.follow(hosts, c.state)
	}
	if c.conn == nil {
		return
	}
	for k, names := range named {
		if len(names) > 0 {
			c.ask(Kind(k), names)
		}
	}
}

// ask subscribes to those of the names that are wanted, and unsubscribes from the others.
func (c *Client) ask(k Kind, names []string) {
	if !c.conn.asked[k] {
		c.subscribe(k)
		return
	}
	if c.o.StateOfTheWorld {
		c.named[k] = c.state.names(k)
		if h := &c.conn.holds[k]; h.request != nil { // the delayed request must have the current subscription
			h.request.names = c.named[k]
			return
		}
		c.askAll(&request{kind: k, version: c.versions[k], nonce: c.conn.nonces[k], names: c.named[k]})
		return
	}
	q, left := &request{kind: k}, maxRequest
	slices.Sort(names)
	for _, name := range names {
		if need := len(name) + aroundName; need > left && len(q.subscribe)+len(q.unsubscribe) > 0 {
			c.conn.queue = append(c.conn.queue, q)
			q, left = &request{kind: k}, maxRequest-need
		} else {
			left -= need
		}
		switch want := c.state.wants(k, name); {
		case want && !c.conn.subscribed[k][name]:
			q.subscribe = append(q.subscribe, name)
			c.conn.subscribed[k][name] = true
		case !want && c.conn.subscribed[k][name]:
			q.unsubscribe = append(q.unsubscribe, name)
			delete(c.conn.subscribed[k], name)
		}
	}
	if len(q.subscribe)+len(q.unsubscribe) > 0 {
		c.conn.queue = append(c.conn.queue, q)
	}
}

// sent is called by the stream's goroutine when a request has been handed to the transport.
func (c *Client) sent(q *request) {
	if q.event == nil {
		return
	}
	q.event.Acked = pace.Now()
	c.report(q.event)
}

func (c *Client) report(e *Event) {
	if c.o.OnEvent != nil {
		c.events.Lock()
		defer c.events.Unlock()
		c.o.OnEvent(*e)
	}
}

// waits reports whether the client has to do something at a later time, without a response.
func (c *Client) waits() bool {
	if len(c.begun) > 0 || c.names.waits() || c.pacer.rests(time.Now()) {
		return true
	}
	if c.conn == nil {
		return false
	}
	for k := range c.conn.holds {
		if c.conn.holds[k].request != nil {
			return true
		}
	}
	return !c.conn.answered || len(c.conn.queue) > 0 || c.conn.busy.Load() != 0
}

// look does what is due by now: it sends delayed refusals, ends a stuck stream, starts look-ups of host names, and ends
// the wait of clusters for endpoints.
func (c *Client) look(ctx context.Context) error {
	now := time.Now()
	if c.conn != nil {
		c.patience(now)
	}
	c.names.look(ctx, now)
	starved := false
	for name, since := range c.begun {
		starved = c.state.overdue(name, now.Sub(since)) || starved
	}
	if !starved {
		return nil
	}
	return c.unasked(ctx)
}

// unasked applies changes that no response caused. If the store refuses a resource, the control plane does not learn
// of it, because a refusal answers a response.
func (c *Client) unasked(ctx context.Context) error {
	o := &outcome{}
	if err := c.settle(ctx, o); err != nil {
		return err
	}
	c.follow()
	return nil
}

// patience sends refusals whose delay is over, and ends a stream that has been stuck for too long.
func (c *Client) patience(now time.Time) {
	for k := range c.conn.holds {
		if h := &c.conn.holds[k]; h.request != nil && !now.Before(h.due) {
			c.conn.queue = append(c.conn.queue, h.request)
			h.request = nil
		}
	}
	c.conn.patience(now, &c.o, c.State().Phase == Never)
}

func (c *Client) resolved(ctx context.Context, a answer) error {
	if !c.names.done(a, c.state) {
		return nil
	}
	return c.unasked(ctx)
}
