// Package controlplane is a control plane as a process: it reads a mesh and tells it to data planes by xDS, as state of
// the world and as deltas.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"tare/internal/pace"
	"tare/internal/subject/mesh/controlplane/ads"
)

// Sent is one response as it left.
type Sent = ads.Sent

// Answer is what a data plane said to a response.
type Answer = ads.Answer

// Options are what a server tells and how. The zero value will do: every data plane is then told the same.
type Options struct {
	// Key is what a data plane is told by: the key of SetAll. See ads.Options.
	Key      func(context.Context, *corev3.Node) (string, error)
	OnSent   func(Sent)   // called by the stream's goroutine
	OnAnswer func(Answer) // the same
	// Stamped has responses of deltas tell in their version, which the protocol has for debugging only, when Set was
	// called and when they left: see TimesOf. With state of the world the version is data, and stays as it is.
	Stamped bool
	Server  []grpc.ServerOption // more options, such as credentials
}

// TimesOf reads the times (ns by pace.Now) that a stamped response tells in its version.
func TimesOf(version string) (set, sent int64, ok bool) { return ads.TimesOf(version) }

// Server is a control plane. Make it with New.
type Server struct {
	ads     *ads.Server
	grpc    *grpc.Server
	encoder ads.Encoder

	mu   sync.Mutex
	last map[string]told
}

// told is what a key was told last.
type told struct {
	resources Resources // only of everyone's
	tables    map[string]*ads.Table
}

// everyone is the key of data planes where there is but one.
const everyone = ""

// New makes a server without resources. It answers nobody before the first Set.
func New(o Options) *Server {
	s := &Server{last: map[string]told{}}
	s.ads = ads.New(ads.Options{Key: o.Key, OnSent: o.OnSent, OnAnswer: o.OnAnswer, Stamped: o.Stamped})
	pings := keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}
	options := append(ads.ServerOptions(), grpc.KeepaliveEnforcementPolicy(pings))
	s.grpc = grpc.NewServer(append(options, o.Server...)...)
	s.ads.Register(s.grpc)
	return s
}

// Registrar is where more services can be added before Serve.
func (s *Server) Registrar() grpc.ServiceRegistrar { return s.grpc }

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

// Set makes r what the control plane tells every data plane, and returns the time (ns by pace.Now) at which it began
// to; see OnSent for when each response left. A list that is the very one of the Set before is not looked at again, nor
// is a message that is.
func (s *Server) Set(_ context.Context, r Resources) (int64, error) {
	called := pace.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	tables, err := s.tables(s.last[everyone], r, s.encoder.Resource)
	if err != nil {
		return 0, err
	}
	s.last[everyone] = told{r, tables}
	return s.ads.Set(everyone, ads.View{Tables: tables, Since: called}), nil
}

// SetAll makes each of all what the control plane tells data planes of that key, forgets the other keys and ends their
// streams. A message that several have is encoded once. It returns the same as Set.
func (s *Server) SetAll(_ context.Context, all map[string]Resources) (int64, error) {
	called := pace.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[proto.Message]*ads.Resource{}
	encode := func(m proto.Message) (r *ads.Resource, err error) {
		if r = known[m]; r == nil {
			if r, err = s.encoder.Resource(m); err == nil {
				known[m] = r
			}
		}
		return r, err
	}
	next := make(map[string]told, len(all))
	same := map[string]*ads.Table{} // by what is in them: keys share tables
	for key, r := range all {
		tables, err := s.tables(told{tables: s.last[key].tables}, r, encode)
		if err != nil {
			return 0, fmt.Errorf("for %q: %w", nodeOf(key), err)
		}
		for url, t := range tables {
			if other := same[url+t.Version()]; other != nil {
				tables[url] = other
			} else {
				same[url+t.Version()] = t
			}
		}
		next[key] = told{tables: tables}
	}
	began := pace.Now()
	for key, t := range next {
		s.ads.Set(key, ads.View{Tables: t.tables, Since: called})
	}
	for key := range s.last {
		if _, stays := next[key]; !stays {
			s.ads.Delete(key)
		}
	}
	s.last = next
	return began, nil
}

// SetSecrets changes the secrets alone that data planes of some keys are told, which SetAll has told all of theirs
// before. Those of other keys are not looked at.
func (s *Server) SetSecrets(_ context.Context, some map[string][]*tlsv3.Secret) error {
	called := pace.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[string]told, len(some))
	for key, secrets := range some {
		last, known := s.last[key]
		if !known {
			return fmt.Errorf("for %q: nobody is told anything by this key", nodeOf(key))
		}
		tables := maps.Clone(last.tables)
		if err := add(tables, ads.SecretType, last.tables, nil, secrets, s.encoder.Resource); err != nil {
			return fmt.Errorf("for %q: %w", nodeOf(key), err)
		}
		next[key] = told{tables: tables}
	}
	for key, t := range next {
		s.ads.Set(key, ads.View{Tables: t.tables, Since: called})
		s.last[key] = t
	}
	return nil
}

// encode makes a resource of a message.
type encode func(proto.Message) (*ads.Resource, error)

// tables are those of resources, upon what was told before.
func (s *Server) tables(last told, r Resources, e encode) (map[string]*ads.Table, error) {
	t := map[string]*ads.Table{}
	return t, errors.Join(
		add(t, ads.ClusterType, last.tables, last.resources.Clusters, r.Clusters, e),
		add(t, ads.EndpointType, last.tables, last.resources.Endpoints, r.Endpoints, e),
		add(t, ads.ListenerType, last.tables, last.resources.Listeners, r.Listeners, e),
		add(t, ads.RouteType, last.tables, last.resources.Routes, r.Routes, e),
		add(t, ads.SecretType, last.tables, last.resources.Secrets, r.Secrets, e))
}

// message is a resource that can be told from another by what it is, not by what is in it.
type message interface {
	comparable
	proto.Message
}

// add adds the table of a type. That of before is taken as far as it holds, and whole if it says the same.
func add[T message](to map[string]*ads.Table, url string, last map[string]*ads.Table, before, list []T,
	e encode) error {
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

// differs says whether a list is the one before but for some messages, each in the place of one of its name, and gives
// these.
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
