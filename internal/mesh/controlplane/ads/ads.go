// Package ads is the aggregated discovery service of xDS. It tracks what each data plane has subscribed to and been
// sent, and decides the order in which to send the rest.
//
// A view holds the resources for all data planes with one key, in one table per type. The caller decides which key a
// data plane has. Setting a view never waits for a data plane. Each stream sends the difference between what it sent
// last and the current view, so changes that come faster than answers are merged.
package ads

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"tare/internal/lib/pace"
)

// Sent describes one response. Time is when it was handed to the transport, in nanoseconds by pace.Now
// (CLOCK_MONOTONIC).
type Sent struct {
	TypeURL, Nonce string
	Resources      int
	Removed        int // number of removed names; deltas only
	Time           int64
	Node           string // the id of the data plane
	Since          int64  // View.Since of the view that it was made from
	Asked          bool   // the data plane requested the response; false: a change of the view caused it
}

// Answer is a data plane's answer to a response.
type Answer struct {
	Node, TypeURL, Nonce string
	Version              string // state of the world: the last version that the data plane accepted
	Refused              string // the reason of a refusal; empty: it was accepted
	Time                 int64  // ns by pace.Now
	Since                int64  // Sent.Since of the response
	Asked                bool   // Sent.Asked of the response
}

// Options configures a Server. The zero value is valid: all data planes then have the key "".
type Options struct {
	// Key returns the key of a data plane by its node id. It is called before a stream joins the streams of the key, and
	// again afterwards, because the key may change in between; if it does, the stream ends. The context carries the peer.
	// An error ends the stream, with PermissionDenied unless it is a gRPC status.
	Key func(ctx context.Context, node string) (string, error)
	// Check decides whether a stream that has a key may continue, for example because its certificate is still valid. It
	// is called for each request, before each response, and for all streams by Server.Check, and must be quick. An error
	// ends the stream, as for Key. nil: every stream may continue.
	Check    func(ctx context.Context) error
	OnSent   func(Sent)   // called by the stream's goroutine
	OnAnswer func(Answer) // called by the stream's goroutine
	// Stamped adds two times to the versions of delta responses: when the view was set, and when the response was sent
	// (see TimesOf). The delta protocol uses the version for debugging only. In the state-of-the-world protocol the
	// version is data, so it is not stamped.
	Stamped bool
	// Patience is how long to wait for an answer before the same type is sent again, or the next stage of a change
	// goes on without it; default 2 s. Envoy answers clusters only once they are warm, which can take 15 s.
	Patience time.Duration
}

// stampFormat is the format of a stamped version: the version, View.Since, and Sent.Time.
const stampFormat = "%s set=%d sent=%d"

// TimesOf parses the times (ns by pace.Now) in the version of a stamped response; ok is false if it is not stamped.
func TimesOf(version string) (set, sent int64, ok bool) {
	var number string
	n, err := fmt.Sscanf(version, stampFormat, &number, &set, &sent)
	return set, sent, err == nil && n == 3
}

// View holds all resources that a data plane gets, by the URL of their type.
type View struct {
	Tables map[string]*Table
	Since  int64 // when the change was made, ns by pace.Now, for Sent, Answer and Stamped; 0: the time of Set
}

func (v *View) table(url string) *Table {
	if v != nil {
		if t := v.Tables[url]; t != nil {
			return t
		}
	}
	return empty
}

// entry holds the view of a key and the streams of its data planes.
type entry struct {
	view    atomic.Pointer[View]
	gone    atomic.Bool          // Delete has been called
	streams map[*stream]struct{} // guarded by Server.mu
}

// wakeUp wakes all streams of a key. The caller must hold the server's mu.
func (e *entry) wakeUp() {
	for stream := range e.streams {
		stream.wakeUp()
	}
}

// Server is an aggregated discovery service. Make it with New.
type Server struct {
	o       Options
	begins  time.Duration // a stream must make its first request within this time
	atWork  sync.WaitGroup
	sets    nameSets
	mu      sync.Mutex
	entries map[string]*entry
}

// New makes a server. A data plane is answered once its key has a view.
func New(o Options) *Server {
	if o.Key == nil {
		o.Key = func(context.Context, string) (string, error) { return "", nil }
	}
	if o.Check == nil {
		o.Check = func(context.Context) error { return nil }
	}
	if o.Patience <= 0 {
		o.Patience = 2 * time.Second
	}
	return &Server{o: o, begins: beginsWithin, entries: map[string]*entry{}}
}

// at returns the entry of a key, creating it if needed. The caller must hold s.mu.
func (s *Server) at(key string) *entry {
	e := s.entries[key]
	if e == nil {
		e = &entry{streams: map[*stream]struct{}{}}
		s.entries[key] = e
	}
	return e
}

// Set sets the view of a key, and returns the time (ns by pace.Now) at which it began to wake the key's streams. It
// does not wait for them. The caller must not change the view afterwards.
func (s *Server) Set(key string, v View) int64 {
	now := pace.Now()
	if v.Since == 0 {
		v.Since = now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.at(key)
	e.view.Store(&v)
	e.wakeUp()
	return now
}

// Delete forgets a key and ends its streams.
func (s *Server) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[key]; e != nil {
		delete(s.entries, key)
		e.gone.Store(true)
		e.wakeUp()
	}
}

// Check wakes every stream, even an idle one, to run Options.Check.
func (s *Server) Check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		e.wakeUp()
	}
}

// Streams returns the number of streams that have a key.
func (s *Server) Streams() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		n += len(e.streams)
	}
	return n
}

// Wait waits until the goroutines of all streams have ended. The gRPC server must have been stopped.
func (s *Server) Wait() { s.atWork.Wait() }

// Register adds the service to a gRPC server, which must have been made with ServerOptions.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	method := func(name string, delta bool) grpc.StreamDesc {
		return grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, g grpc.ServerStream) error { return s.handle(g, delta) }}
	}
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			method("StreamAggregatedResources", false), method("DeltaAggregatedResources", true)},
		Metadata: "envoy/service/discovery/v3/ads.proto",
	}, s)
}

// Limits on the streams of a connection. A data plane has one discovery stream, and one stream for each certificate
// request. Envoy has one discovery stream for all types, because only the aggregated discovery service is served.
const (
	maxStreams = 16
	// maxHeaders bounds the headers of a stream, in bytes by HTTP/2's count. Envoy's take less than 1 KiB; a pod's
	// service account token, which is sent to get a certificate, takes up to 8 KiB.
	maxHeaders = 12 << 10
	// beginsWithin is how long a stream may stay without a first request. Data planes send one at once.
	beginsWithin = 10 * time.Second
)

// readBuffer is the size of a connection's read buffer in bytes. It is enough for what data planes send after their
// first requests; gRPC's default of 32 KiB would be half of the memory that an idle data plane takes.
const readBuffer = 1 << 10

// HTTP/2's flow control windows of a stream and of a connection, in bytes. gRPC would let them grow to 16 MiB.
const (
	streamWindow     = 64 << 10
	connectionWindow = 1 << 20
)

// ServerOptions returns the options that a gRPC server needs for the service, with limits on what its peers can use.
// Call it once for each server. own are the server's credentials; nil: none.
func ServerOptions(own credentials.TransportCredentials) []grpc.ServerOption {
	return newIntake().serverOptions(own)
}

func (in *intake) serverOptions(own credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(Codec()), grpc.MaxRecvMsgSize(MaxRequest),
		grpc.Creds(in.credentials(own)), grpc.ChainStreamInterceptor(in.serve),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders), grpc.ConnectionTimeout(10 * time.Second),
		grpc.WaitForHandlers(true), // so that Wait, after the server has stopped, waits for all streams
		grpc.HeaderTableSize(0),    // a data plane sends headers once, at the beginning of its stream
		grpc.ReadBufferSize(readBuffer), grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connectionWindow)}
}

// handle serves a stream of either variant. It only waits: gRPC's goroutine already has a deep stack, which work here
// would double for as long as the stream is open.
func (s *Server) handle(g grpc.ServerStream, delta bool) error {
	stream := &stream{server: s, g: g, delta: delta, requests: make(chan *request, 1), ended: make(chan error, 1)}
	if c, ok := g.(*counted); ok {
		stream.conn = c.conn
	}
	stream.begins = time.AfterFunc(s.begins, func() {
		stream.close(status.Error(codes.DeadlineExceeded, "no request came: connect again, and make one"))
	})
	s.atWork.Go(stream.receive)
	err := <-stream.ended
	stream.begins.Stop()
	s.leave(stream)
	stream.letGo()
	return err
}

// key returns the key of a data plane. Its error is a gRPC status.
func (s *Server) key(ctx context.Context, node string) (string, error) {
	key, err := s.o.Key(ctx, node)
	return key, denied(err)
}

// denied converts an error that is not a gRPC status to one with PermissionDenied. It returns nil for nil.
func denied(err error) error {
	if _, is := status.FromError(err); is {
		return err
	}
	return status.Error(codes.PermissionDenied, err.Error())
}

func (s *Server) join(key string, stream *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream.key, stream.entry = key, s.at(key)
	stream.entry.streams[stream] = struct{}{}
}

func (s *Server) leave(stream *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := stream.entry
	if e == nil { // it never joined a key
		return
	}
	delete(e.streams, stream)
	if len(e.streams) == 0 && e.view.Load() == nil && s.entries[stream.key] == e { // no view was ever set for it
		delete(s.entries, stream.key)
	}
}
