// Package controlplane runs a control plane. It reads a mesh and sends it to data planes by xDS, in both variants,
// state of the world and deltas.
package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"tare/internal/lib/pace"
	"tare/internal/mesh/controlplane/ads"
)

// Sent is one response at the time it was sent.
type Sent = ads.Sent

// Answer is a data plane's answer to a response.
type Answer = ads.Answer

// Options configures a Server. The zero value is valid: every data plane then gets the same resources.
type Options struct {
	ads.Options // Key returns the key (see SetAll) of a data plane
	// Idle is how long a connection may stay open without a stream; default DefaultIdle.
	Idle time.Duration
	// Credentials secure the server's connections; nil: no TLS.
	Credentials credentials.TransportCredentials
	Server      []grpc.ServerOption // further options of the gRPC server
}

// DefaultIdle is the default of Options.Idle. Data planes open a stream as soon as they connect.
const DefaultIdle = 15 * time.Second

// TimesOf parses the version of a stamped response (Options.Stamped), and returns when the change was made and when the
// response was sent, in ns by pace.Now. ok is false if the version is not stamped.
func TimesOf(version string) (set, sent int64, ok bool) { return ads.TimesOf(version) }

// Server is a control plane. Make it with New.
type Server struct {
	ads  *ads.Server
	grpc *grpc.Server

	encoder  ads.Encoder
	interned ads.Interned

	mu      sync.Mutex
	last    map[string]content
	commons map[*Resources]*common // the common resources that at least one key has
}

// View holds what data planes with a key get: resources shared with other keys, and resources of this key alone.
type View struct {
	Common *Resources // compared by pointer: if it is already in use, it is not encoded again; nil: none
	Own    Resources
}

// content holds what was last set for a key.
type content struct {
	common *Resources
	tables tables
}

// tables holds a table for each type, by the type's URL.
type tables map[string]*ads.Table

// common holds the tables made from common resources (View.Common).
type common struct {
	tables tables
	keys   int // the number of keys with these resources
}

// everyone is the key of all data planes if there is only one key.
const everyone = ""

// New makes a server without resources. It sends no response before the first Set.
func New(o Options) *Server {
	s := &Server{last: map[string]content{}, commons: map[*Resources]*common{}}
	s.ads = ads.New(o.Options)
	pings := keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}
	idle := keepalive.ServerParameters{MaxConnectionIdle: cmp.Or(o.Idle, DefaultIdle)}
	options := append(ads.ServerOptions(o.Credentials), grpc.KeepaliveEnforcementPolicy(pings), grpc.KeepaliveParams(idle))
	s.grpc = grpc.NewServer(append(options, o.Server...)...)
	s.ads.Register(s.grpc)
	return s
}

// Registrar returns the registrar with which to add services before Serve.
func (s *Server) Registrar() grpc.ServiceRegistrar { return s.grpc }

// Streams returns the number of open streams.
func (s *Server) Streams() int { return s.ads.Streams() }

// Check ends the streams for which Options.Check now returns an error.
func (s *Server) Check() { s.ads.Check() }

// Serve answers at l until Close. It closes l.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving xDS at %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends all streams.
func (s *Server) Close() {
	s.grpc.Stop()
	s.ads.Wait()
}

// Set replaces what every data plane gets, and returns the time (ns by pace.Now) at which it began to do so; OnSent
// gets the time at which each response was sent. Messages with the same pointers, and lists with the same backing
// arrays, as in the previous Set count as unchanged.
func (s *Server) Set(ctx context.Context, r Resources) (int64, error) {
	return s.SetAll(ctx, map[string]View{everyone: {Common: &r}})
}

// SetAll replaces what each key gets. It forgets every other key, and ends its streams. It returns the same as Set.
func (s *Server) SetAll(_ context.Context, all map[string]View) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []string
	for key := range s.last {
		if _, stays := all[key]; !stays {
			gone = append(gone, key)
		}
	}
	return s.change(all, gone)
}

// Change replaces what some keys get, forgets the keys that are gone, and ends their streams. It does not look at
// other keys. It returns the same as Set.
func (s *Server) Change(_ context.Context, some map[string]View, gone []string) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change(some, gone)
}

// change applies a change as a whole, or not at all. The caller must hold mu.
func (s *Server) change(some map[string]View, gone []string) (int64, error) {
	called := pace.Now()
	known := map[proto.Message]*ads.Resource{} // a message that several keys have is encoded once
	e := func(m proto.Message) (r *ads.Resource, err error) {
		if r = known[m]; r == nil {
			if r, err = s.encoder.Resource(m); err == nil {
				known[m] = r
			}
		}
		return r, err
	}
	next := make(map[string]content, len(some))
	added := map[*Resources]tables{}
	for key, v := range some {
		last := s.last[key]
		shared, err := s.commonTables(v.Common, last.common, added, e)
		if err == nil {
			var own tables
			if own, err = ownTables(shared, v.Own, last.tables, e); err == nil {
				next[key] = content{v.Common, own}
			}
		}
		if err != nil {
			if key != everyone {
				err = fmt.Errorf("for %q: %w", nodeOf(key), err)
			}
			return 0, err
		}
	}
	for r, t := range added {
		s.commons[r] = &common{tables: t}
	}
	began := pace.Now()
	for key, t := range next {
		s.count(t.common, 1)
		s.forget(key)
		s.last[key] = t
		s.ads.Set(key, ads.View{Tables: t.tables, Since: called})
	}
	for _, key := range gone {
		s.forget(key)
		s.ads.Delete(key)
	}
	return began, nil
}

// forget removes what was last set for a key.
func (s *Server) forget(key string) {
	if t, known := s.last[key]; known {
		s.count(t.common, -1)
		delete(s.last, key)
	}
}

// count adds more, which may be negative, to the number of keys that share the resources r. It forgets r once no key
// has it.
func (s *Server) count(r *Resources, more int) {
	c := s.commons[r]
	if c == nil {
		return
	}
	if c.keys += more; c.keys == 0 {
		delete(s.commons, r)
	}
}

// commonTables returns the tables of common resources, derived from the tables of last, the key's previous common
// resources. New tables are put into added.
func (s *Server) commonTables(r, last *Resources, added map[*Resources]tables, e encode) (tables, error) {
	if r == nil {
		return tables{}, nil
	}
	if c := s.commons[r]; c != nil {
		return c.tables, nil
	}
	if t := added[r]; t != nil {
		return t, nil
	}
	var before tables
	if c := s.commons[last]; c != nil {
		before = c.tables
	} else {
		last = &Resources{}
	}
	t := tables{}
	err := errors.Join(
		add(t, ads.ClusterType, before, last.Clusters, r.Clusters, e),
		add(t, ads.EndpointType, before, last.Endpoints, r.Endpoints, e),
		add(t, ads.ListenerType, before, last.Listeners, r.Listeners, e),
		add(t, ads.RouteType, before, last.Routes, r.Routes, e),
		add(t, ads.SecretType, before, last.Secrets, r.Secrets, e))
	if err != nil {
		return nil, err
	}
	for url := range t { // another set of common resources may have the same table
		t[url] = s.interned.Table(url, t[url])
	}
	added[r] = t
	return t, nil
}

// ownTables returns the tables of a key: the common ones, extended by the key's own resources. Unchanged tables are
// kept.
func ownTables(shared tables, r Resources, last tables, e encode) (tables, error) {
	if len(r.Clusters)+len(r.Endpoints)+len(r.Listeners)+len(r.Routes)+len(r.Secrets) == 0 {
		return shared, nil
	}
	t := maps.Clone(shared)
	return t, errors.Join(
		extend(t, ads.ClusterType, r.Clusters, last, e),
		extend(t, ads.EndpointType, r.Endpoints, last, e),
		extend(t, ads.ListenerType, r.Listeners, last, e),
		extend(t, ads.RouteType, r.Routes, last, e),
		extend(t, ads.SecretType, r.Secrets, last, e))
}

// extend adds a key's own resources to the table of a type.
func extend[T message](t tables, url string, own []T, last tables, e encode) error {
	resources, err := resourcesOf(own, nil, e)
	if err != nil {
		return err
	}
	return extended(t, url, t[url], resources, last)
}

func extended(t tables, url string, base *ads.Table, own []*ads.Resource, last tables) error {
	next, err := base.With(own)
	if err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	if old := last[url]; old.Same(next) {
		next = old
	}
	t[url] = next
	return nil
}

// SetSecrets replaces only the secrets that belong to some keys alone (View.Own). An earlier SetAll or Change must have
// set the keys. It does not look at other keys.
func (s *Server) SetSecrets(_ context.Context, some map[string][]*tlsv3.Secret) error {
	called := pace.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[string]content, len(some))
	for key, secrets := range some {
		last, known := s.last[key]
		if !known {
			return fmt.Errorf("for %q: no resources have been set for this key", nodeOf(key))
		}
		resources, err := resourcesOf(secrets, nil, s.encoder.Resource)
		t := maps.Clone(last.tables)
		if err == nil {
			var base *ads.Table
			if c := s.commons[last.common]; c != nil {
				base = c.tables[ads.SecretType]
			}
			err = extended(t, ads.SecretType, base, resources, last.tables)
		}
		if err != nil {
			return fmt.Errorf("for %q: %w", nodeOf(key), err)
		}
		next[key] = content{last.common, t}
	}
	for key, t := range next {
		s.ads.Set(key, ads.View{Tables: t.tables, Since: called})
		s.last[key] = t
	}
	return nil
}

// encode encodes a message as a resource.
type encode func(proto.Message) (*ads.Resource, error)

// message is a resource before it is encoded. It is compared by pointer, not by content.
type message interface {
	comparable
	proto.Message
}

// add adds the table of a type. It reuses unchanged entries of the previous table, or the whole previous table if
// nothing has changed.
func add[T message](to tables, url string, last tables, before, list []T, e encode) error {
	old := last[url]
	var t *ads.Table
	changed, ok := differs(before, list)
	switch {
	case old != nil && ok && len(changed) == 0 && len(before) == len(list) && (len(list) > 0 || old.Len() == 0):
		to[url] = old
		return nil
	case old != nil && ok && len(before) > 0:
		resources, err := resourcesOf(changed, nil, e)
		if err != nil {
			return err
		}
		if t, err = old.Replace(resources); err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
	default:
		known := make(map[T]*ads.Resource, len(before))
		for _, m := range before {
			known[m] = old.Get(ads.NameOf(m))
		}
		resources, err := resourcesOf(list, known, e)
		if err != nil {
			return err
		}
		if t, err = ads.NewTable(resources); err != nil {
			return fmt.Errorf("%s: %w", url, err)
		}
	}
	if old != nil && old.Version() == t.Version() {
		t = old
	}
	to[url] = t
	return nil
}

// differs returns the messages of list that replace messages of the same names in before, the previous list. ok is
// false if the lists differ in any other way.
func differs[T message](before, list []T) (changed []T, ok bool) {
	if len(before) != len(list) {
		return nil, false
	}
	if len(list) > 0 && &before[0] == &list[0] {
		return nil, true
	}
	for i, m := range list {
		if m == before[i] {
			continue
		}
		if ads.NameOf(m) != ads.NameOf(before[i]) {
			return nil, false
		}
		changed = append(changed, m)
	}
	return changed, true
}

func resourcesOf[T message](list []T, known map[T]*ads.Resource, e encode) ([]*ads.Resource, error) {
	resources := make([]*ads.Resource, 0, len(list))
	for _, m := range list {
		r := known[m]
		if r == nil {
			var err error
			if r, err = e(m); err != nil {
				return nil, err
			}
		}
		resources = append(resources, r)
	}
	return resources, nil
}
