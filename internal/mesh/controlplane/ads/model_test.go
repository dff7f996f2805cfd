package ads

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// model is a data plane that behaves like Envoy: it subscribes to all clusters and listeners, and to the endpoints and
// routes that these name. A cluster that is new or changed is not in use until its endpoints have come.
type model struct {
	*peer
	t     *testing.T
	has   map[string]map[string]string // contents of the resources that it holds, by kind and name
	warm  map[string]bool              // clusters in use
	asked map[string][]string
	r     *rand.Rand
	late  []string // types to be answered
	heard chan heard
}

// heard is a response with its resources, by name.
type heard struct {
	got
	contents map[string]string
	err      error
}

// TestModel: with any sequence of changes, and answers delayed and reordered at random, a data plane has the last view
// in the end, and no cluster waits for endpoints.
func TestModel(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		for seed := range uint64(10) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) { t.Parallel(); testModel(t, delta, seed) })
		}
	})
}

func testModel(t *testing.T, delta bool, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	s := New(Options{Patience: forEver})
	m := &model{peer: connect(t, serve(t, s), delta), t: t, r: r, has: map[string]map[string]string{},
		warm: map[string]bool{}, asked: map[string][]string{}, heard: make(chan heard, 100)}
	for kind := range urls {
		m.has[kind] = map[string]string{}
	}
	view := func() string {
		var c, e, l, routes []string
		for i := range 6 {
			if r.IntN(3) > 0 {
				c = append(c, fmt.Sprintf("c%d=%d", i, r.IntN(3)))
			}
			e = append(e, fmt.Sprintf("c%d=%d", i, r.IntN(3)))
			if r.IntN(3) > 0 {
				l = append(l, fmt.Sprintf("l%d=r%d/%d", i, r.IntN(6), r.IntN(2)))
			}
			routes = append(routes, fmt.Sprintf("r%d=%d", i, r.IntN(3)))
		}
		words := slices.Concat([]string{"C"}, c, []string{"E"}, e, []string{"L"}, l, []string{"R"}, routes)
		return strings.Join(words, " ")
	}
	s.Set("", viewOf(t, view()))
	m.want("C")
	m.want("L")
	go m.read() // ends with the stream
	changes := make(chan string, 100)
	go func() { // concurrently with the data plane
		wait := rand.New(rand.NewPCG(seed, 8))
		for text := range changes {
			time.Sleep(time.Duration(wait.IntN(3000)) * time.Microsecond)
			s.Set("", viewOf(t, text))
		}
		s.Set("", viewOf(t, "C end=1 E end=1 L last=end/1 R end=1"))
	}()
	for range 30 {
		changes <- view()
	}
	close(changes)
	for !m.done() {
		m.turn()
	}
}

// done says whether the data plane has the last view.
func (m *model) done() bool {
	only := func(kind, name string) bool {
		return len(m.has[kind]) == 1 && m.has[kind][name] != ""
	}
	return only("C", "end") && only("L", "last") && m.warm["end"] && m.has["R"]["end"] != "" && len(m.late) == 0
}

// turn receives a response, or answers an earlier one, in any order.
func (m *model) turn() {
	var g heard
	var wait <-chan time.Time
	if len(m.late) > 0 {
		wait = time.After(time.Duration(m.r.IntN(2000)) * time.Microsecond)
	}
	select {
	case g = <-m.heard:
	case <-wait:
		i := m.r.IntN(len(m.late))
		m.reply(m.late[i])
		m.late = slices.Delete(m.late, i, i+1)
		return
	}
	if g.err != nil {
		m.t.Fatal(g.err)
	}
	m.nonces[g.kind] = g.nonce
	contents := g.contents
	for name, content := range contents {
		if g.kind == "C" && m.has["C"][name] != content {
			m.warm[name] = false
		}
		if g.kind == "E" {
			m.warm[name] = true
		}
		m.has[g.kind][name] = content
	}
	for _, name := range g.removed {
		delete(m.has[g.kind], name)
	}
	if m.delta == nil && (g.kind == "C" || g.kind == "L") {
		maps.DeleteFunc(m.has[g.kind], func(name, _ string) bool { _, there := contents[name]; return !there })
	}
	m.taken[g.kind] = g.version
	m.late = append(m.late, g.kind)
}

// reply acknowledges the last response of a type, and subscribes to what is needed now.
func (m *model) reply(kind string) {
	m.answer(kind, "")
	var need []string
	of := map[string]string{"C": "E", "L": "R"}[kind]
	switch kind {
	case "C":
		need = slices.Sorted(maps.Keys(m.has["C"]))
	case "L":
		for _, content := range m.has["L"] {
			need = append(need, content[strings.Index(content, ":")+1:])
		}
		slices.Sort(need)
		need = slices.Compact(need)
	default:
		return
	}
	if slices.Equal(need, m.asked[of]) {
		return
	}
	before := m.asked[of]
	m.asked[of] = need
	if m.delta == nil {
		m.want(of, need...)
		return
	}
	without := func(a, b []string) (rest []string) {
		for _, x := range a {
			if !slices.Contains(b, x) {
				rest = append(rest, x)
			}
		}
		return rest
	}
	drop := without(before, need)
	for _, name := range drop {
		delete(m.has[of], name)
	}
	m.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf(of), ResourceNamesSubscribe: without(need, before),
		ResourceNamesUnsubscribe: drop})
}

// read receives responses until the stream ends. It records the route that a listener names as well.
func (m *model) read() {
	for {
		h := heard{contents: map[string]string{}}
		h.got, h.err = m.hearAll(func(name string, x proto.Message) {
			b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(x)
			h.contents[name] = fmt.Sprintf("%x:", b)
			if needs := NeedsOf(x); len(needs) > 0 {
				h.contents[name] += needs[0].Name
			}
		})
		if m.heard <- h; h.err != nil {
			return
		}
	}
}

// silent is a stream without a connection: requests come from a channel, and responses go to another.
type silent struct {
	ctx context.Context
	in  chan []byte
	out func(*response)
}

func (s *silent) SetHeader(metadata.MD) error  { return nil }
func (s *silent) SendHeader(metadata.MD) error { return nil }
func (s *silent) SetTrailer(metadata.MD)       {}
func (s *silent) Context() context.Context     { return s.ctx }
func (s *silent) SendMsg(m any) error          { s.out(m.(*response)); return nil }
func (s *silent) RecvMsg(m any) error {
	select {
	case b := <-s.in:
		r := m.(*request)
		r.err = r.parse(b)
		return nil
	case <-s.ctx.Done():
		return io.EOF
	}
}

var _ grpc.ServerStream = (*silent)(nil)

// TestIdleMemory: a data plane that is up to date takes little memory, however many names it subscribes to, because
// most data planes subscribe to the same names. The memory of gRPC's connection is not included.
func TestIdleMemory(t *testing.T) {
	const streams, services, most = 200, 500, 16 << 10
	both(t, func(t *testing.T, delta bool) {
		var list []string
		for i := range services {
			list = append(list, fmt.Sprint("service-", i))
		}
		s := New(Options{})
		v := viewOf(t, "C "+strings.Join(list, " ")+" E "+strings.Join(list, " ")+" L "+strings.Join(list, " "))
		s.Set("", v)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error)
		memory := func() uint64 {
			var m runtime.MemStats
			for range 3 { // stacks shrink during garbage collection
				runtime.GC()
			}
			runtime.ReadMemStats(&m)
			return m.HeapAlloc + m.StackInuse
		}
		before := memory()
		for range streams {
			said := make(chan *response, 1)
			g := &silent{ctx: ctx, in: make(chan []byte), out: func(r *response) { said <- r }}
			go func() { ended <- s.handle(g, delta) }()
			for _, url := range []string{ClusterType, EndpointType, ListenerType} {
				names := list
				if url != EndpointType {
					names = nil
				}
				for answer := range 2 {
					var m proto.Message = &discoveryv3.DiscoveryRequest{TypeUrl: url, ResourceNames: names}
					if answer == 1 {
						r := <-said
						m = &discoveryv3.DiscoveryRequest{TypeUrl: url, ResourceNames: names,
							ResponseNonce: r.nonce, VersionInfo: r.version}
						if delta {
							m = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: r.nonce}
						}
						if r.resources != services {
							t.Fatalf("%d resources", r.resources)
						}
					} else if delta {
						m = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: names}
					}
					b, err := proto.Marshal(m)
					if err != nil {
						t.Fatal(err)
					}
					g.in <- b
				}
			}
		}
		each := (memory() - before) / streams
		t.Logf("%d bytes for each of %d streams", each, streams)
		if each > most {
			t.Errorf("%d bytes for each stream, more than %d", each, most)
		}
		stop()
		for range streams {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		s.Wait()
		runtime.KeepAlive(v)
		if n := s.Streams(); n != 0 {
			t.Errorf("%d streams are left", n)
		}
	})
}
