// Package ads is the aggregated discovery service of xDS: what data planes have subscribed to, what they have been
// told, and in which order they are told the rest.
//
// A view is what one key is told: tables of resources, by type. Which key a data plane has is for the caller to say.
// Setting a view never waits for a data plane; each stream goes from what it told last to what there is now, so that
// changes which come faster than answers become one.
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

// Sent is one response as it left. Time is nanoseconds by pace.Now (CLOCK_MONOTONIC), just before it was handed to the
// transport.
type Sent struct {
	TypeURL, Nonce string
	Resources      int
	Removed        int // deltas only
	Time           int64
	Node           string // the id of the data plane
	Since          int64  // that of the view, see View
	Asked          bool   // the data plane had asked for it: it need not be news
}

// Answer is what a data plane said to a response.
type Answer struct {
	Node, TypeURL, Nonce string
	Version              string // state of the world: the last that it took
	Refused              string // why; empty: it was taken
	Time                 int64  // ns by pace.Now
	Since                int64  // of the response, as is Asked
	Asked                bool
}

// Options are who is told, and who hears of it. The zero value will do: all data planes then have the key "".
type Options struct {
	// Key is the view that a data plane is told, by the id of its node. It is called before a stream joins those of the
	// key and again once it has, because its answer may change in between; another answer ends the stream. The context
	// has the peer. An error ends the stream, with PermissionDenied if it is no status of gRPC's.
	Key func(ctx context.Context, node string) (string, error)
	// Check says whether a stream that has a key may go on: whoever was known by a certificate may be known no more. It
	// is called for each request, before each response, and for all streams by Server.Check, and must be quick. An error
	// ends the stream as that of Key does. nil: every stream may.
	Check    func(ctx context.Context) error
	OnSent   func(Sent)   // called by the stream's goroutine
	OnAnswer func(Answer) // the same
	// Stamped has responses of deltas tell in their version, which the protocol has for debugging only, when the view
	// was set and when they left: see TimesOf. With state of the world the version is data, and stays as it is.
	Stamped bool
	// Patience is how long an answer is waited for, before the same type is told again or the next stage of a change
	// goes on without it; default 2 s. Envoy answers clusters only once they are warm, which can take 15 s.
	Patience time.Duration
}

// stampFormat is how a version has the times: that of View.Since, and that of Sent.
const stampFormat = "%s set=%d sent=%d"

// TimesOf reads the times (ns by pace.Now) that a stamped response tells in its version.
func TimesOf(version string) (set, sent int64, ok bool) {
	var number string
	n, err := fmt.Sscanf(version, stampFormat, &number, &set, &sent)
	return set, sent, err == nil && n == 3
}

// View is what a data plane is told: all resources, by the URL of their type.
type View struct {
	Tables map[string]*Table
	Since  int64 // the time (ns by pace.Now) that Stamped tells as that of the change; 0: that of Set
}

func (v *View) table(url string) *Table {
	if v != nil {
		if t := v.Tables[url]; t != nil {
			return t
		}
	}
	return empty
}

// entry is a key: what it is told, and whom that is.
type entry struct {
	view    atomic.Pointer[View]
	gone    atomic.Bool          // Delete has been called
	streams map[*stream]struct{} // guarded by Server.mu
}

// wakeUp has all streams of a key look at what has changed. The server's mu is held.
func (e *entry) wakeUp() {
	for stream := range e.streams {
		stream.wakeUp()
	}
}

// Server is an aggregated discovery service. Make it with New.
type Server struct {
	o       Options
	begins  time.Duration // within which a stream must make its first request
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

// at is the entry of a key. s.mu is held.
func (s *Server) at(key string) *entry {
	e := s.entries[key]
	if e == nil {
		e = &entry{streams: map[*stream]struct{}{}}
		s.entries[key] = e
	}
	return e
}

// Set makes v what a key is told, and returns the time (ns by pace.Now) at which its streams began to hear of it. It
// waits for none of them. The view must not be changed afterwards.
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

// Check has every stream checked (Options.Check) now, for those that nothing happens on would not be.
func (s *Server) Check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		e.wakeUp()
	}
}

// Streams is how many data planes are connected.
func (s *Server) Streams() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		n += len(e.streams)
	}
	return n
}

// Wait waits until nothing of any stream is at work. The gRPC server must have been stopped.
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

// What streams a connection may have. A data plane has one, and one more for each certificate that it asks for. Envoy
// has one for all types, because the other discovery services of xDS are not served.
const (
	maxStreams = 16
	// maxHeaders bounds the headers of a stream, in bytes by HTTP/2's count. Those of Envoy have less than 1 KiB, and the
	// token of a pod's service account, by which it gets a certificate, 8 KiB at most.
	maxHeaders = 12 << 10
	// beginsWithin is how long a stream may stay without a first request. Data planes make it as soon as they can.
	beginsWithin = 10 * time.Second
)

// readBuffer is what a connection may keep to read into, in bytes, enough for what data planes say but at the
// beginning; the 32 KiB of gRPC would be half of what an idle data plane costs.
const readBuffer = 1 << 10

// What a peer can have under way, in bytes: on a stream and on a connection. gRPC would let it grow to 16 MiB.
const (
	streamWindow     = 64 << 10
	connectionWindow = 1 << 20
)

// ServerOptions are what a gRPC server needs for the service, and bounds of what its peers can cost. They are for one
// server; own are its credentials, nil for none.
func ServerOptions(own credentials.TransportCredentials) []grpc.ServerOption {
	return newIntake().serverOptions(own)
}

func (in *intake) serverOptions(own credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(Codec()), grpc.MaxRecvMsgSize(MaxRequest),
		grpc.Creds(in.credentials(own)), grpc.ChainStreamInterceptor(in.serve),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders), grpc.ConnectionTimeout(10 * time.Second),
		grpc.WaitForHandlers(true), // so that Wait waits for all
		grpc.HeaderTableSize(0),    // a data plane sends headers once, at the beginning of its stream
		grpc.ReadBufferSize(readBuffer), grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connectionWindow)}
}

// handle serves a stream of either variant. It only waits: the stack of gRPC's goroutine is deep by then, and would
// stay twice as large for as long as the stream is there if anything were done upon it.
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

// key is the key of a data plane. The error is a status of gRPC's.
func (s *Server) key(ctx context.Context, node string) (string, error) {
	key, err := s.o.Key(ctx, node)
	return key, denied(err)
}

// denied is an error as a status of gRPC's.
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
	if e == nil { // it never joined
		return
	}
	delete(e.streams, stream)
	if len(e.streams) == 0 && e.view.Load() == nil && s.entries[stream.key] == e { // nobody ever set it
		delete(s.entries, stream.key)
	}
}
