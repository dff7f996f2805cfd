package xds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"tare/internal/mesh"
	"tare/internal/mesh/xds/translate"
)

// responseOf makes a response with resources.
func responseOf(items ...item) *response {
	var m discoveryv3.DeltaDiscoveryResponse
	for _, it := range items {
		m.Resources = append(m.Resources, &discoveryv3.Resource{Name: it.name, Version: it.version,
			Resource: &anypb.Any{TypeUrl: it.typeURL, Value: it.value}})
	}
	return decoded(&m)
}

// removal makes a response that removes a resource.
func removal(name string) *response {
	return decoded(&discoveryv3.DeltaDiscoveryResponse{RemovedResources: []string{name}})
}

func decoded(m *discoveryv3.DeltaDiscoveryResponse) *response {
	b, err := proto.Marshal(m)
	r := &response{delta: true}
	if err = errors.Join(err, r.decode(b)); err != nil {
		panic(err)
	}
	return r
}

// The memory that resources take is counted, with names and versions, and the count is close to what they really take.
func TestKeptBytes(t *testing.T) {
	limits := Options{}.withDefaults().Limits
	limits.Bytes = 1 << 20
	long := strings.Repeat("v", maxText)
	for name, make := range map[string]func(i int) item{
		"versions": func(i int) item { return item{name: strconv.Itoa(i), version: long} },
		"names":    func(i int) item { return item{name: long[:maxText-10] + strconv.Itoa(i)} },
		"empty":    func(i int) item { return item{name: strconv.Itoa(i)} },
	} {
		s := newState(limits)
		for i := range 10_000 {
			it := make(i)
			it.typeURL, it.value = Clusters.TypeURL(), wrap(t, Clusters, edsCluster(it.name)).Value
			s.take(Clusters, responseOf(it), false)
		}
		kept, text := len(s.taken[Clusters]), 0
		for name, x := range s.taken[Clusters] {
			text += len(name) + len(x.version)
		}
		if kept < 50 || text+kept*perResource > limits.Bytes || s.bytes > limits.Bytes {
			t.Errorf("%s: of %d resources %d bytes are counted; their names and versions have %d", name, kept, s.bytes, text)
		}
		for name := range maps.Clone(s.taken[Clusters]) {
			s.take(Clusters, removal(name), false)
		}
		if s.bytes != 0 {
			t.Errorf("%s: %d bytes are counted of nothing", name, s.bytes)
		}
	}
}

// A longer version of an unchanged resource counts; a shorter one frees memory.
func TestVersionThatGrows(t *testing.T) {
	s := newState(Options{}.withDefaults().Limits)
	it := item{name: "a", typeURL: Clusters.TypeURL(), value: wrap(t, Clusters, edsCluster("a")).Value}
	before := 0
	for _, n := range []int{0, 1000, maxText, 10} {
		it.version = strings.Repeat("v", n)
		if o := s.take(Clusters, responseOf(it), false); len(o.refused) > 0 {
			t.Fatal(o.refused)
		}
		if before += n; s.bytes != before && n > 0 {
			t.Errorf("%d bytes are counted with a version of %d, want %d", s.bytes, n, before)
		}
		before = s.bytes - n
	}
	s.limits.Bytes = s.bytes + 5
	it.version = strings.Repeat("v", 100)
	if o := s.take(Clusters, responseOf(it), false); len(o.refused) != 1 {
		t.Errorf("%d bytes more are taken: %v", 90, o.refused)
	}
}

// A resource that may not fit is decoded only after those before it are staged, and accepted if it then fits.
func TestRoomThatIsLeft(t *testing.T) {
	limits := Options{}.withDefaults().Limits
	s := newState(limits)
	value := func(name string) item {
		return item{name: name, typeURL: Clusters.TypeURL(), value: wrap(t, Clusters, edsCluster(name)).Value}
	}
	s.take(Clusters, responseOf(value("a")), false)
	s.limits.Bytes = 2 * s.bytes
	bad := value("b")
	bad.name = "not b"
	o := s.take(Clusters, responseOf(bad, value("c"), value("d")), false)
	if s.taken[Clusters]["c"].size == 0 || s.taken[Clusters]["d"].size != 0 || len(o.refused) != 2 {
		t.Errorf("%v are taken, %v refused", slices.Sorted(maps.Keys(s.taken[Clusters])), o.refused)
	}
}

// Conflicts about addresses are settled in a number of steps linear in the number of listeners, whatever address each
// had before.
func TestContestsAreLinear(t *testing.T) {
	const n = 10_000
	for name, places := range map[string]struct{ before, after func(i int) int }{
		"one place":         {func(int) int { return -1 }, func(int) int { return 0 }},
		"in a row":          {func(i int) int { return i }, func(i int) int { return min(i+1, n) }},
		"backwards":         {func(i int) int { return i }, func(i int) int { return max(i-1, 0) }},
		"two by two":        {func(i int) int { return i }, func(i int) int { return i / 2 }},
		"all to an old one": {func(i int) int { return i }, func(int) int { return n }},
	} {
		wants := map[int]map[string]bool{n: {"old": true}}
		name1 := func(i int) string { return fmt.Sprintf("%05d", i) }
		staged := map[string]int{}
		var all []int
		for i := range n {
			staged[name1(i)] = places.before(i)
			link(wants, places.after(i), name1(i))
			all = append(all, places.after(i))
		}
		steps := 0
		contests[int]{
			members: func(at int) map[string]bool { steps += 1 + len(wants[at]); return wants[at] },
			staged:  func(name string) bool { _, ok := staged[name]; return ok },
			reject: func(at int, name, stays string) (int, bool) {
				if !wants[at][name] || !wants[at][stays] || name == stays {
					t.Fatalf("%s: %s goes from %d for %s, which do not both want it", t.Name(), name, at, stays)
				}
				unlink(wants, at, name)
				before := staged[name]
				delete(staged, name)
				if before >= 0 {
					link(wants, before, name)
				}
				return before, before >= 0
			},
		}.settle(all)
		for at, names := range wants {
			if len(names) > 1 {
				t.Errorf("%s: %d want place %d", name, len(names), at)
			}
		}
		if steps > 10*n {
			t.Errorf("%s: %d steps for %d places", name, steps, n)
		}
	}
}

// Listeners that each want the address of the next stay where they are if the last cannot move. This takes one
// response and one plan.
func TestPlacesInARow(t *testing.T) {
	const n = 2000
	s := newState(Options{}.withDefaults().Limits)
	response := func(shift int) *response {
		var all []item
		for i := range n {
			at := i + shift
			if i == n-1 {
				at = i
			}
			l := tcpListener(fmt.Sprintf("l%06d", i), uint32(1+at), "a")
			all = append(all, item{typeURL: Listeners.TypeURL(), value: wrap(t, Listeners, l).Value})
		}
		return responseOf(all...)
	}
	settle := func(o *outcome) {
		if err := s.settle(func(mesh.Change) error { return nil }, o); err != nil {
			t.Fatal(err)
		}
	}
	a := &clusterv3.Cluster{Name: "a", LoadAssignment: endpoints("a", 1)}
	settle(s.take(Clusters, responseOf(item{typeURL: Clusters.TypeURL(), value: wrap(t, Clusters, a).Value}), true))
	settle(s.take(Listeners, response(0), true))
	o := s.take(Listeners, response(1), true)
	settle(o)
	if len(o.refused) != n-1 || len(s.active.Listeners) != n || s.waiting() != 0 {
		t.Fatalf("%d are refused, %d listen, %d wait", len(o.refused), len(s.active.Listeners), s.waiting())
	}
	for i := range n {
		if l := s.active.Listeners[fmt.Sprintf("l%06d", i)]; int(l.Address.Port()) != 1+i {
			t.Fatalf("listener %d is at %s", i, l.Address)
		}
	}
}

// Requests with names and versions stay within the servers' limit, and are complete together.
func TestSubscriptions(t *testing.T) {
	versions := map[string]string{}
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("name-%04d", i))
		if i%2 == 0 {
			versions[names[i]] = "version"
		}
	}
	size := func(q *request) (n int) {
		return proto.Size(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: q.subscribe,
			InitialResourceVersions: q.versions})
	}
	for name, c := range map[string]struct {
		names    []string
		versions map[string]string
		room     int
		parts    bool
	}{
		"all, of which nothing is there": {nil, nil, 1000, false},
		"all":                            {nil, versions, 100_000, false},
		"all, in parts":                  {nil, versions, 5000, true},
		"by name":                        {names, versions, 100_000, false},
		"by name, in parts":              {names, versions, 5000, true},
		"by name, one at a time":         {names[:10], versions, 1, true},
	} {
		queue := subscriptions(Clusters, c.names, c.versions, c.room)
		if (len(queue) > 1) != c.parts {
			t.Errorf("%s: %d requests", name, len(queue))
		}
		known := map[string]bool{} // names that are requested, or whose version is sent
		for i, q := range queue {
			if n := size(q); n > c.room && len(q.subscribe)+len(q.versions) > 1 {
				t.Errorf("%s: request %d has %d bytes, want at most %d", name, i, n, c.room)
			}
			if i > 0 && len(q.versions) > 0 {
				t.Errorf("%s: request %d has versions, which only the first may have", name, i)
			}
			for _, name := range q.subscribe {
				known[name] = true
			}
			if c.names == nil {
				for name, v := range q.versions {
					known[name] = v == versions[name]
				}
			}
		}
		want := c.names
		if want == nil {
			want = slices.Collect(maps.Keys(c.versions))
			if c.parts {
				want = append(want, "*")
			}
		}
		if got := slices.Sorted(maps.Keys(known)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: %d names are known, want %d", name, len(got), len(want))
		}
	}
}

// manyNames returns more cluster names than servers accept in one request.
func manyNames() (names []string) {
	for i := range 12_000 {
		names = append(names, fmt.Sprintf("%05d-%s", i, strings.Repeat("n", 400)))
	}
	return names
}

// A server that accepts no more than gRPC's default of 4 MiB gets a larger subscription in several requests, and when
// the client reconnects as many versions as fit.
func TestManyNames(t *testing.T) {
	names := manyNames()
	s := &script{}
	var mu sync.Mutex
	asked := map[string]bool{}
	again := make(chan *discoveryv3.DeltaDiscoveryRequest, 1)
	s.delta = func(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		for {
			q, err := stream.Recv()
			if err != nil {
				return err
			}
			switch {
			case q.GetTypeUrl() == Clusters.TypeURL() && len(q.GetInitialResourceVersions()) > 0:
				select {
				case again <- q:
				default:
				}
			case q.GetTypeUrl() == Clusters.TypeURL() && q.GetResponseNonce() == "" && len(q.GetResourceNamesSubscribe()) == 0:
				r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: Clusters.TypeURL(), Nonce: "1"}
				for _, name := range names {
					r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: "1",
						Resource: wrap(t, Clusters, edsCluster(name))})
				}
				if err := stream.Send(r); err != nil {
					return err
				}
			case q.GetTypeUrl() == Endpoints.TypeURL():
				mu.Lock()
				for _, name := range q.GetResourceNamesSubscribe() {
					asked[name] = true
				}
				n := len(asked)
				mu.Unlock()
				if n == len(names) {
					return errors.New("the control plane goes")
				}
			}
		}
	}
	m := newModel(t)
	c := m.run(s.serve(t), nil)
	m.until("all endpoints are asked for", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) == len(names)
	})
	q := <-again
	if !slices.Equal(q.GetResourceNamesSubscribe(), []string{"*"}) || len(q.GetInitialResourceVersions()) >= len(names) {
		t.Errorf("the first request of the second stream asks for %.100q and has %d versions",
			q.GetResourceNamesSubscribe(), len(q.GetInitialResourceVersions()))
	}
	if err := c.State().Err; err != nil && strings.Contains(err.Error(), "larger than max") {
		t.Error(err)
	}
}

// With the state of the world all names must be in one request; if no server would accept it, the client reports an
// error.
func TestTooManyNames(t *testing.T) {
	names := manyNames()
	s := &script{world: func(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		r := &discoveryv3.DiscoveryResponse{TypeUrl: Clusters.TypeURL(), VersionInfo: "1", Nonce: "1"}
		for _, name := range names {
			r.Resources = append(r.Resources, wrap(t, Clusters, edsCluster(name)))
		}
		if err := stream.Send(r); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}}
	m := newModel(t)
	m.run(s.serve(t), func(o *Options) { o.StateOfTheWorld = true })
	m.until("it says why", func() bool {
		return slices.ContainsFunc(m.states, func(s State) bool {
			return s.Err != nil && strings.Contains(s.Err.Error(), "the names of 12000 endpoints have")
		})
	})
}

// If a control plane answers and then refuses a request, the client doubles its wait each time, as without an answer,
// because the next attempt would end in the same way. If a stream ends for another reason after an answer, the wait
// stops growing; it starts from the beginning after a stream that lasted longer than the wait before it.
func TestBackoff(t *testing.T) {
	refused := status.Error(codes.ResourceExhausted, "grpc: received message larger than max")
	goes := status.Error(codes.Unavailable, "goes")
	for name, c := range map[string]struct {
		err    error
		lasted time.Duration
		waits  []time.Duration // upper limits; half of each is random
	}{
		"refused":      {refused, 0, []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}},
		"refused late": {refused, 59 * time.Minute, []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}},
		"unavailable":  {goes, 0, []time.Duration{1, 2, 4, 8, 8, 8}},
		"lasted":       {goes, 59 * time.Minute, []time.Duration{1, 1, 1}},
		"stood":        {refused, 61 * time.Minute, []time.Duration{1, 1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := New(Options{Address: "unix:none", Apply: newModel(t).apply,
				Timeouts: Timeouts{Reconnect: time.Minute, ReconnectMax: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			for i, most := range c.waits {
				client.conn = &conn{begun: time.Now().Add(-c.lasted), open: true, answered: true}
				most *= time.Minute
				if wait := client.lost(c.err); wait < most/2 || wait > most {
					t.Errorf("wait %d is %v, want %v to %v", i+1, wait, most/2, most)
				}
			}
		})
	}
}

func TestPacer(t *testing.T) {
	var p pacer
	now := time.Now()
	for range 9 { // a burst
		now = now.Add(100 * time.Millisecond)
		if p.worked(now, 100*time.Millisecond); p.rests(now) {
			t.Fatal("it rests at once")
		}
	}
	began, worked := now, time.Duration(0)
	for now.Sub(began) < time.Minute {
		if p.rests(now) {
			now = now.Add(10 * time.Millisecond)
			continue
		}
		now = now.Add(100 * time.Millisecond)
		worked += 100 * time.Millisecond
		p.worked(now, 100*time.Millisecond)
	}
	if worked < 38*time.Second || worked > 43*time.Second {
		t.Errorf("it worked for %v of a minute", worked)
	}
	if now = now.Add(10 * time.Second); p.owed(now) != 0 {
		t.Errorf("it owes %v after a rest", p.owed(now))
	}
}

// pipe is a connection with data to read.
type pipe struct {
	net.Conn
	io.Reader
}

func (p pipe) Read(b []byte) (int, error) { return p.Reader.Read(b) }

func TestPieces(t *testing.T) {
	message := func(b *bytes.Buffer, length, piece int) {
		f := http2.NewFramer(b, nil)
		m := append([]byte{0, byte(length >> 24), byte(length >> 16), byte(length >> 8), byte(length)},
			make([]byte, length)...)
		for len(m) > 0 {
			n := min(piece, len(m))
			if err := f.WriteData(1, false, m[:n]); err != nil {
				t.Fatal(err)
			}
			m = m[n:]
		}
		if err := f.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		write func(b *bytes.Buffer)
		bad   bool
	}{
		"large":               {func(b *bytes.Buffer) { message(b, 4<<20, 16<<10) }, false},
		"in pieces":           {func(b *bytes.Buffer) { message(b, 4<<20, minPiece) }, false},
		"byte by byte":        {func(b *bytes.Buffer) { message(b, 8<<10, 1) }, true},
		"a few bytes each":    {func(b *bytes.Buffer) { message(b, 4<<20, minPiece-1) }, true},
		"short, byte by byte": {func(b *bytes.Buffer) { message(b, manyPieces-100, 1) }, false},
		"many short, byte by byte": {func(b *bytes.Buffer) {
			for range 100 {
				message(b, 1000, 1)
				message(b, 0, 1)
			}
		}, false},
		"nothing, again and again": {func(b *bytes.Buffer) {
			f := http2.NewFramer(b, nil)
			for range manyPieces + 1 {
				if err := f.WriteData(1, false, nil); err != nil {
					t.Fatal(err)
				}
			}
		}, true},
	} {
		for _, most := range []int{1, 7, 64 << 10} { // maximum bytes of a read
			var b bytes.Buffer
			c.write(&b)
			want := b.Len()
			f := &frames{Conn: pipe{Reader: &b}}
			got, read := 0, make([]byte, most)
			var err error
			for err == nil {
				var n int
				n, err = f.Read(read)
				got += n
			}
			if bad := errors.Is(err, errPieces); bad != c.bad || !bad && got != want {
				t.Errorf("%s, %d bytes at a time: %d of %d bytes, %v", name, most, got, want, err)
			}
		}
	}
}

// The decoded size of a resource is checked before it is decoded, and one that is too large is refused by name.
func TestWeighedFirst(t *testing.T) {
	s := newState(Options{}.withDefaults().Limits)
	empty := &listenerv3.Listener{Name: "l"}
	for range 1 << 20 {
		empty.FilterChains = append(empty.FilterChains, &listenerv3.FilterChain{})
	}
	it := item{typeURL: Listeners.TypeURL(), value: wrap(t, Listeners, empty).Value}
	o := s.take(Listeners, responseOf(it), false)
	if text := reason(o.refused, o.more); !strings.HasPrefix(text, `listener "l": decoding its `) {
		t.Errorf("got %s", text)
	}
	if _, err := translate.Weigh(it.typeURL, it.value[:1<<10]); err != nil {
		t.Error(err)
	}
}
