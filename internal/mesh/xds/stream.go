package xds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"tare/internal/lib/limit/handshake"
	"tare/internal/lib/pace"
	"tare/internal/lib/self"
	"tare/internal/lib/text"
)

// conn is one stream and its state. Only the client's goroutine uses the state. Two further goroutines, which end with
// the stream, read and write.
type conn struct {
	in     chan *response
	out    chan *request
	ended  chan error // gets one error, once both goroutines have ended
	cancel context.CancelFunc
	begun  time.Time
	opened chan struct{} // closed once the stream is open
	busy   atomic.Int64  // when the sending of the current request began, ns by pace.Now; 0 if none is being sent

	open       bool
	queue      []*request
	asked      [kinds]bool
	answered   bool
	nonces     [kinds]string
	holds      [kinds]hold
	subscribed [kinds]map[string]bool // deltas: the names that the client subscribes to
	why        atomic.Pointer[error]  // the error for which the client has ended the stream (fail); nil: it has not
}

// hold holds the text of the last refusal that was sent (wrong). If the next answer is the same refusal, hold also
// holds the request with that answer, which is delayed, and when the request is due.
type hold struct {
	wrong   string
	wait    time.Duration
	request *request
	due     time.Time
}

// wire is a stream of one variant of the protocol.
type wire interface {
	send(*request) error
	receive() (*response, error)
}

// window is the size of gRPC's windows for flow control, in bytes. Usual responses fit into it, so that the control
// plane does not wait.
const window = 8 << 20

// open starts to open a stream. It closes conn.opened once the stream is open, and sends the error that ends the stream
// on conn.ended. It calls the function sent with each request that has been handed to the transport.
func open(ctx context.Context, o *Options, sent func(*request)) *conn {
	ctx, cancel := context.WithCancel(ctx)
	c := &conn{in: make(chan *response), out: make(chan *request), ended: make(chan error, 1), cancel: cancel,
		begun: time.Now(), opened: make(chan struct{})}
	for k := range c.subscribed {
		c.subscribed[k] = map[string]bool{}
	}
	go func() {
		err := c.run(ctx, o, sent)
		if why := c.why.Load(); why != nil {
			err = *why
		}
		c.ended <- err
	}()
	return c
}

func (c *conn) run(ctx context.Context, o *Options, sent func(*request)) error {
	defer c.cancel()
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(handshake.Then(insecure.NewCredentials(), guarded)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.Limits.Message)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	}
	if !strings.HasPrefix(o.Address, "unix:") {
		// The control plane's machine may vanish without closing the connection. TCP keepalive detects that; gRPC's own pings
		// would not do, because servers that do not expect them refuse them.
		dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second,
			Interval: 5 * time.Second, Count: 3}}
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	}
	cc, err := grpc.NewClient(o.Address, options...)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", o.Address, said{err})
	}
	defer cc.Close()
	w, err := newWire(ctx, cc, o)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", o.Address, said{err})
	}
	close(c.opened)
	writing := make(chan error, 1)
	go func() {
		err := c.write(ctx, w, sent)
		c.cancel() // so that reading ends too
		writing <- err
	}()
	err = c.read(ctx, w)
	c.cancel()
	if also := <-writing; err == nil || errors.Is(err, context.Canceled) {
		err = also
	}
	return fmt.Errorf("the stream from %s ended: %w", o.Address, said{err})
}

// maxHeaders bounds the headers and trailers of a stream, and maxSaid the part of a control plane's error message that
// the client repeats, in bytes.
const (
	maxHeaders = 64 << 10
	maxSaid    = 1 << 10
)

// said wraps an error that contains a message of the control plane, and prints it safely on one line.
type said struct{ error }

func (s said) Error() string { return text.ClipLine(s.error.Error(), maxSaid) }
func (s said) Unwrap() error { return s.error }

// fail ends a stream with an error found by the client.
func (c *conn) fail(err error) {
	c.why.CompareAndSwap(nil, &err)
	c.cancel()
}

// large is the length in bytes above which a response is processed, and its memory freed, before the next response is
// read.
const large = 8 << 20

func (c *conn) read(ctx context.Context, w wire) error {
	for {
		r, err := w.receive()
		if err != nil {
			return err
		}
		var handled chan struct{}
		if r.wire > large {
			handled = make(chan struct{})
			r.handled = handled
		}
		select {
		case c.in <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
		if handled == nil {
			continue
		}
		select {
		case <-handled:
			runtime.GC() // otherwise the heap may grow to twice its size with this response
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *conn) write(ctx context.Context, w wire, sent func(*request)) error {
	for {
		select {
		case q := <-c.out:
			c.busy.Store(pace.Now())
			err := w.send(q)
			c.busy.Store(0)
			if err != nil {
				return err
			}
			sent(q)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// patience ends a stream that has been stuck for longer than a time limit. If never is set, the client has received
// nothing so far, on any stream.
func (c *conn) patience(now time.Time, o *Options, never bool) {
	var err error
	switch since := now.Sub(c.begun); {
	case !c.open && since > o.Timeouts.Connect:
		err = fmt.Errorf("connecting to %s: there is no stream after %v", o.Address, o.Timeouts.Connect)
	case never && !c.answered && since > o.Timeouts.Answer:
		err = fmt.Errorf("%s has not answered in %v", o.Address, o.Timeouts.Answer)
	}
	if b := c.busy.Load(); err == nil && b != 0 && time.Duration(pace.Now()-b) > o.Timeouts.Send {
		err = fmt.Errorf("%s has taken no request for %v", o.Address, o.Timeouts.Send)
	}
	if err != nil {
		c.fail(err)
	}
}

func newWire(ctx context.Context, cc *grpc.ClientConn, o *Options) (wire, error) {
	node := &corev3.Node{Id: o.Node, Cluster: "tare", UserAgentName: "tare",
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: self.Version}}
	if len(o.Metadata) > 0 {
		node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for name, value := range o.Metadata {
			node.Metadata.Fields[name] = structpb.NewStringValue(value)
		}
	}
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(cc)
	if o.StateOfTheWorld {
		s, err := client.StreamAggregatedResources(ctx, grpc.ForceCodecV2(newCodec()))
		return &world{s, node, o.Limits.entries()}, err
	}
	s, err := client.DeltaAggregatedResources(ctx, grpc.ForceCodecV2(newCodec()))
	return &delta{s, node, o.Limits.entries()}, err
}

// problem returns the error detail of a request that refuses a response for the given reason. It returns nil if the
// reason is empty: the request then acknowledges the response.
func problem(wrong string) *statuspb.Status {
	if wrong == "" {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.InvalidArgument), Message: wrong}
}

// world is a stream of the state-of-the-world variant.
type world struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node   *corev3.Node // for the first request
	most   int          // maximum number of resources and names in one response
}

func (w *world) send(q *request) error {
	m := &discoveryv3.DiscoveryRequest{Node: w.node, TypeUrl: q.kind.TypeURL(), VersionInfo: q.version,
		ResponseNonce: q.nonce, ResourceNames: q.names, ErrorDetail: problem(q.wrong)}
	w.node = nil
	return w.stream.Send(m)
}

func (w *world) receive() (*response, error) { return receive(w.stream, false, w.most) }

// delta is a stream of the incremental variant.
type delta struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *corev3.Node // for the first request
	most   int          // maximum number of resources and names in one response
}

func (w *delta) send(q *request) error {
	m := &discoveryv3.DeltaDiscoveryRequest{Node: w.node, TypeUrl: q.kind.TypeURL(), ResponseNonce: q.nonce,
		ErrorDetail:            problem(q.wrong),
		ResourceNamesSubscribe: q.subscribe, ResourceNamesUnsubscribe: q.unsubscribe, InitialResourceVersions: q.versions}
	w.node = nil
	return w.stream.Send(m)
}

func (w *delta) receive() (*response, error) { return receive(w.stream, true, w.most) }

// receive waits for a response. It does not use the stream's Recv, which would use the generated decoder; see codec.
func receive(stream grpc.ClientStream, delta bool, most int) (*response, error) {
	r := &response{delta: delta, most: most}
	if err := stream.RecvMsg(r); err != nil {
		return nil, err
	}
	r.received = pace.Now()
	return r, nil
}
