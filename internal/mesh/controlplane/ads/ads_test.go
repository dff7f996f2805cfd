package ads

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A data plane receives what it has subscribed to, once, and again when that changes.
func TestFollow(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: forEver})
		p := connect(t, serve(t, s), delta)
		p.want("C")
		p.want("E", "a", "b")
		s.Set("", viewOf(t, "C a b E a b c")) // there is no response before Set
		p.takes("C a b")
		p.takes("E a b")
		p.quiet()
		s.Set("", viewOf(t, "C a b E a b c"))
		p.quiet()
		s.Set("", viewOf(t, "C a b E a=1 b c=1"))
		p.takes("E a")
		p.quiet()
		s.Set("", viewOf(t, "C a b c E a=1 b c=1"))
		p.takes(map[bool]string{false: "C a b c", true: "C c"}[delta])
		p.quiet()
		p.want("E", map[bool][]string{false: {"a", "b", "c"}, true: {"c"}}[delta]...)
		p.takes("E c")
		p.quiet()
	})
}

// A refused response is not sent again until something changes. Then its resources are sent again, as they are now.
func TestRefusal(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		var mu sync.Mutex
		var answers []Answer
		s := New(Options{Patience: forEver, OnAnswer: func(a Answer) {
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, a)
		}})
		p := connect(t, serve(t, s), delta)
		s.Set("", viewOf(t, "C a b E a b"))
		p.want("C")
		p.expect("C a b")
		p.answer("C", "I do not like b")
		p.want("E", "a", "b")
		p.expect("E a b")
		p.answer("E", "nor its endpoints")
		p.quiet()
		s.Set("", viewOf(t, "C a b=1 E a b"))
		p.takes("C a b")
		p.takes("E a b") // the endpoints of clusters that are warming
		p.quiet()
		s.Set("", viewOf(t, "C a b=2 E a b"))
		p.takes(map[bool]string{false: "C a b", true: "C b"}[delta]) // nothing is in doubt any more
		p.takes("E b")
		p.quiet()
		mu.Lock()
		defer mu.Unlock()
		if len(answers) < 3 || answers[0].Refused != "I do not like b" || answers[0].Node != "node" ||
			answers[1].TypeURL != EndpointType || answers[1].Refused == "" || answers[2].Refused != "" {
			t.Errorf("answers %+v", answers)
		}
	})
}

// A resource that is refused repeatedly is in doubt once.
func TestRefusedAgain(t *testing.T) {
	list := viewOf(t, "C a b c").Tables[ClusterType].list
	s := &subscription{names: noNames, sent: empty}
	for i := range 100 {
		s.sends(&flight{nonce: fmt.Sprint(i), changed: list[i%2:]})
		s.answer(&request{nonce: s.nonce, refused: true})
	}
	if len(s.doubt) != len(list) {
		t.Errorf("%d resources of %d are in doubt", len(s.doubt), len(list))
	}
}

// TestRefusedLate: a response may be refused after another has been sent. The refusal is reported, and the refused
// resources are sent again with the next change.
func TestRefusedLate(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		var mu sync.Mutex
		refused := map[string]string{}         // reasons by nonce
		const patience = 10 * time.Millisecond // deadline under test
		s := New(Options{Patience: patience, OnAnswer: func(a Answer) {
			mu.Lock()
			defer mu.Unlock()
			if a.Refused != "" {
				refused[a.Nonce] = a.Refused
			}
		}})
		p := connect(t, serve(t, s), delta)
		s.Set("", viewOf(t, "E a b c"))
		p.want("E", "a", "b", "c")
		p.takes("E a b c")
		s.Set("", viewOf(t, "E a=2 b=2 c"))
		first := p.expect("E a b").nonce
		s.Set("", viewOf(t, "E a=2 b=2 c=2"))
		second := p.expect("E c").nonce
		p.nonces["E"] = first
		p.answer("E", "I do not like b")
		p.nonces["E"] = second
		p.answer("E", "")
		p.quiet() // the answers have been processed
		s.Set("", viewOf(t, "E a=2 b=3 c=2"))
		p.takes("E a b")
		p.quiet()
		mu.Lock()
		defer mu.Unlock()
		if len(refused) != 1 || refused[first] == "" {
			t.Errorf("refused %v, want response %s", refused, first)
		}
	})
}

// The number of responses whose answers still count is limited, and each is answered once.
func TestUnanswered(t *testing.T) {
	s := &subscription{names: noNames, sent: empty}
	for i := range mostFlights + 1 {
		s.sends(&flight{nonce: fmt.Sprint(i)})
	}
	for _, c := range []struct {
		nonce string
		first bool
		left  int
	}{{"0", false, mostFlights}, {"2", true, mostFlights - 2}, {"2", false, mostFlights - 2},
		{"1", false, mostFlights - 2}, {s.nonce, true, 0}, {"", false, 0}} {
		if f := s.answer(&request{nonce: c.nonce}); (f != nil) != c.first || len(s.flights) != c.left {
			t.Errorf("answer %q: %v, %d are left; want %v, %d", c.nonce, f, len(s.flights), c.first, c.left)
		}
	}
}

// A data plane that gets a cluster gets its endpoints once more, whether or not it is waiting for them. The same holds
// for listeners and their routes.
func TestWarming(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: forEver})
		p := connect(t, serve(t, s), delta)
		s.Set("", viewOf(t, "C a b E a b L l=r m=q R r q"))
		p.want("C")
		p.takes("C a b")
		p.want("E", "a", "b")
		p.takes("E a b")
		p.want("L")
		p.takes("L l m")
		p.want("R", "r", "q")
		p.takes("R q r")
		s.Set("", viewOf(t, "C a=1 b E a b L l=r m=q R r q"))
		p.expect(map[bool]string{false: "C a b", true: "C a"}[delta])
		p.takes("E a") // before the cluster is answered: Envoy answers only once it has them
		p.answer("C", "")
		p.quiet()
		s.Set("", viewOf(t, "C a=1 b E a b L l=r/1 m=q R r q"))
		p.takes(map[bool]string{false: "L l m", true: "L l"}[delta])
		p.takes("R r")
		p.quiet()
	})
}

// New resources are sent before those that refer to them, removals after the removals of what referred to them, and
// each waits for the answer to the one before.
func TestOrder(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: forEver})
		p := connect(t, serve(t, s), delta)
		s.Set("", viewOf(t, "C a b E a b S s L l=r R r"))
		p.want("C")
		p.takes("C a b")
		p.want("E", "a", "b", "c")
		if p.takes(map[bool]string{false: "E a b", true: "E a b -c"}[delta]); delta {
			p.want("S", "s", "z")
			p.takes("S s -z")
		} else {
			p.want("S", "s")
			p.takes("S s")
		}
		p.want("L")
		p.takes("L l")
		p.want("R", "r")
		p.takes("R r")
		s.Set("", viewOf(t, "C b c E b=1 c S s=1 L m=r R r=1"))
		p.expect(map[bool]string{false: "C a b c", true: "C c"}[delta])
		p.expect("E b c")
		p.expect("S s")
		p.answer("S", "")
		p.answer("E", "")
		p.quiet() // listeners wait for the clusters
		p.answer("C", "")
		p.expect(map[bool]string{false: "L m", true: "L m -l"}[delta])
		p.expect("R r")
		p.answer("R", "")
		p.quiet() // removals wait for the listeners
		p.answer("L", "no")
		if delta {
			p.takes("C -a")
			p.takes("E -a")
		} else {
			p.takes("C b c")
		}
		p.quiet()
	})
}

// Changes made while a response is unanswered are merged into one.
func TestCoalesced(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: forEver})
		p := connect(t, serve(t, s), delta)
		s.Set("", viewOf(t, "E a b"))
		p.want("E", "a", "b")
		p.expect("E a b")
		for i := range 5 {
			s.Set("", viewOf(t, fmt.Sprintf("E a=%d b=%d", i, i)))
		}
		s.Set("", viewOf(t, "E a=9 b"))
		p.quiet()
		p.answer("E", "")
		p.takes("E a")
		p.quiet()
	})
}

// A data plane that does not answer is sent the latest view nevertheless, after Options.Patience.
func TestPatience(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: 50 * time.Millisecond}) // deadline under test
		p := connect(t, serve(t, s), delta)
		s.Set("", viewOf(t, "C a E a L l"))
		p.want("C")
		p.want("L")
		p.expect("C a")
		p.expect("L l")
		s.Set("", viewOf(t, "C b E a L m"))
		p.expect(map[bool]string{false: "C a b", true: "C b"}[delta])
		p.expect(map[bool]string{false: "L m", true: "L m -l"}[delta])
		p.expect(map[bool]string{false: "C b", true: "C -a"}[delta])
	})
}

// A data plane that neither reads nor answers delays no other data plane.
func TestSlowStream(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: 10 * time.Millisecond}) // deadline under test
		address := serve(t, s)
		slow, quick := connect(t, address, delta), connect(t, address, delta)
		long := strings.Repeat("x", 1<<20)
		slow.want("C")
		quick.want("C")
		for i := range 20 { // far more than a connection buffers
			s.Set("", viewOf(t, fmt.Sprint("C a=", i, long)))
			quick.takes("C a")
		}
		if n := s.Streams(); n != 2 {
			t.Errorf("%d streams", n)
		}
	})
}

// A request without names means all clusters and listeners, and none of the resources they refer to, until the data
// plane has named one.
func TestNothingNamed(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: forEver})
		p := connect(t, serve(t, s), delta)
		s.Set("", viewOf(t, "C a b E a b"))
		p.want("E")
		p.want("C")
		p.takes("C a b")
		p.quiet()
		if delta {
			return
		}
		p.want("C", "*", "a")
		p.takes("C a b")
		p.want("C", "a")
		p.quiet()
		s.Set("", viewOf(t, "C a b=1 E a b"))
		p.quiet()
		p.want("C") // after names were given, a request without names means none
		p.quiet()
		s.Set("", viewOf(t, "C a=1 b=2 E a b"))
		p.quiet()
		p.want("C", "b")
		p.takes("C b")
		p.want("C", "*")
		p.takes("C a b")
		p.want("E", "*")
		p.takes("E a b")
		p.quiet()
	})
}

// A data plane that subscribes to clusters or listeners is answered even if there are none.
func TestNothingThere(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{Patience: forEver})
		p := connect(t, serve(t, s), delta)
		s.Set("", View{})
		p.want("C")
		p.takes("C")
		p.want("L")
		p.takes("L")
		p.want("E", "a")
		if delta {
			p.takes("E -a")
		}
		p.quiet()
		s.Set("", viewOf(t, "E a"))
		p.takes("E a")
		p.quiet()
	})
}

// An answer to an older response does not count as one to the latest, and the names in it are out of date.
func TestStaleNonce(t *testing.T) {
	s := New(Options{Patience: forEver})
	p := connect(t, serve(t, s), false)
	s.Set("", viewOf(t, "E a b c"))
	p.want("E", "a")
	p.takes("E a")
	old := p.nonces["E"]
	p.want("E", "a", "b")
	p.expect("E b")
	latest := p.nonces["E"]
	p.nonces["E"] = old
	p.want("E", "c")
	p.quiet()
	p.nonces["E"] = latest
	p.want("E", "a", "c")
	p.takes("E c")
	p.quiet()
}

func TestDeltaSubscriptions(t *testing.T) {
	s := New(Options{Patience: forEver})
	p := connect(t, serve(t, s), true)
	change := func(kind string, add, drop []string) {
		t.Helper()
		p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf(kind), ResourceNamesSubscribe: add,
			ResourceNamesUnsubscribe: drop})
	}
	s.Set("", viewOf(t, "C a b c E a b c"))
	change("E", []string{"a"}, nil)
	p.takes("E a")
	change("E", []string{"a", "b"}, nil) // the data plane may have dropped resource a
	p.takes("E a b")
	change("E", []string{"c"}, []string{"a", "nobody asked"})
	p.takes("E c")
	s.Set("", viewOf(t, "C a b c E a=1 b c=1"))
	p.takes("E c")
	s.Set("", viewOf(t, "C a b c E b c=1"))
	p.quiet()
	s.Set("", viewOf(t, "C a b c E a=2 b"))
	p.takes("E -c")
	s.Set("", viewOf(t, "C a b c E a=2 b c=2"))
	p.takes("E c")
	change("E", nil, []string{"b", "c"})
	p.quiet()
	s.Set("", viewOf(t, "C a b c E b=1 c=3"))
	p.quiet()

	change("C", []string{"a"}, nil)
	p.takes("C a")
	change("C", []string{"*"}, nil)
	p.takes("C b c")
	change("C", []string{"b", "z"}, nil)
	p.takes("C b -z")
	change("C", nil, []string{"b", "z"}) // "*" covers them: the data plane must learn whether they exist
	p.takes("C b -z")
	change("C", nil, []string{"*"})
	p.quiet()
	s.Set("", viewOf(t, "C a=1 b=1 c=1"))
	p.takes("C a")
	change("C", nil, []string{"a"})
	p.quiet()
	s.Set("", viewOf(t, "C a=2 b=2 c=2"))
	p.quiet()
}

// A data plane that reconnects says what it has, and is sent the rest.
func TestDeltaReconnect(t *testing.T) {
	s := New(Options{Patience: forEver})
	address := serve(t, s)
	p := connect(t, address, true)
	s.Set("", viewOf(t, "C a b c E a b c"))
	p.want("C")
	clusters := p.takes("C a b c").versions
	p.want("E", "a", "b", "c")
	endpoints := p.takes("E a b c").versions
	s.Set("", viewOf(t, "C a b=1 d E a b c=1 d"))
	p = connect(t, address, true)
	// The order in which Envoy may ask; see the comment on forced pushes in istio's pilot/pkg/xds/delta.go.
	p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: EndpointType, ResourceNamesSubscribe: []string{"a", "b", "c"},
		InitialResourceVersions: endpoints})
	p.takes("E c")
	p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: ClusterType, InitialResourceVersions: clusters})
	p.expect("C b d")
	p.takes("E b") // b is warming
	p.answer("C", "")
	p.takes("C -c")
	p.quiet()
	p = connect(t, address, true)
	p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: ClusterType, ResourceNamesSubscribe: []string{"*"},
		InitialResourceVersions: map[string]string{"a": clusters["a"]}})
	p.takes("C b d")
	p.quiet()
}

// Each node gets the view of its key, and a node without a key is refused.
func TestKeys(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		var asked atomic.Int64
		s := New(Options{Patience: forEver, Key: func(_ context.Context, id string) (string, error) {
			switch id {
			case "x", "y":
				return id, nil
			case "changing": // has another key once its stream has joined
				return fmt.Sprint(id, asked.Add(1)), nil
			case "later":
				return "", status.Error(codes.Unavailable, "not yet")
			default:
				return "", errors.New("who are you?")
			}
		}})
		address := serve(t, s)
		x, y := connectAs(t, address, delta, "x"), connectAs(t, address, delta, "y")
		x.want("C")
		y.want("C")
		s.Set("x", viewOf(t, "C a b"))
		x.takes("C a b")
		s.Set("y", viewOf(t, "C b c"))
		y.takes("C b c")
		x.quiet()
		s.Delete("x")
		if err := x.ends(); status.Code(err) != codes.NotFound {
			t.Error(err)
		}
		y.quiet()
		for node, want := range map[string]codes.Code{
			"": codes.PermissionDenied, "later": codes.Unavailable, "changing": codes.Unavailable,
		} {
			p := connectAs(t, address, delta, node)
			p.want("C")
			if err := p.ends(); status.Code(err) != want {
				t.Errorf("%q: %v", node, err)
			}
		}
		x = connectAs(t, address, delta, "x") // x has no view, so the stream waits
		x.want("C")
		s.Set("x", viewOf(t, "C a"))
		x.takes("C a")
	})
}

func TestBounds(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{})
		s.Set("", View{})
		address := serve(t, s)
		many := func(n int) (names []string) {
			for i := range n {
				names = append(names, fmt.Sprint(i))
			}
			return names
		}
		long := func(n int) string { return strings.Repeat("x", n) }
		for name, c := range map[string]struct {
			do   func(p *peer)
			want codes.Code
		}{
			"no type":        {func(p *peer) { p.want("") }, codes.InvalidArgument},
			"names":          {func(p *peer) { p.want("E", many(maxNames+1)...) }, codes.ResourceExhausted},
			"a long name":    {func(p *peer) { p.want("E", long(maxName+1)) }, codes.ResourceExhausted},
			"a long id":      {func(p *peer) { p.node = long(maxID + 1); p.want("C") }, codes.ResourceExhausted},
			"a long node":    {func(p *peer) { p.node = long(maxNode + 1); p.want("C") }, codes.ResourceExhausted},
			"a long request": {func(p *peer) { p.want("E", long(MaxRequest)) }, codes.ResourceExhausted},
			"types":          {func(p *peer) { p.types(maxTypes + 1) }, codes.ResourceExhausted},
			"no node":        {func(p *peer) { p.said = true; p.types(1); p.want("") }, codes.InvalidArgument},
		} {
			p := connect(t, address, delta)
			c.do(p)
			if err := p.ends(); status.Code(err) != c.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		if delta { // too many names, in several requests
			p := connect(t, address, delta)
			for i := range 5 {
				names := many(maxNames / 4)
				for j := range names {
					names[j] = fmt.Sprint(i, "-", j)
				}
				p.want("E", names...)
			}
			if err := p.ends(); status.Code(err) != codes.ResourceExhausted {
				t.Error(err)
			}
		}
	})
}

// TestQuota: a few requests never wait, and a flood of requests is slowed down to the rate, which counts sizes as
// well.
func TestQuota(t *testing.T) {
	for _, tt := range []struct {
		name        string
		bytes       int
		each        time.Duration // between two requests
		requests    int
		least, most time.Duration // the sum of all waits
	}{
		{"answers, ten a second", 200, 100 * time.Millisecond, 5000, 0, 0},
		{"as fast as it may for long", 0, time.Second / quotaPerSecond, 5000, 0, 0},
		{"all at once", 0, 0, quotaAtOnce, 0, 0},
		{"twice as much at once", 0, 0, 2 * quotaAtOnce, 9 * time.Second, 11 * time.Second},
		{"large ones", MaxRequest, 0, 20, 12 * time.Second, 18 * time.Second},
	} {
		q, now, waited := newQuota(0), int64(0), time.Duration(0)
		for range tt.requests {
			now += int64(tt.each)
			wait := q.take(int64(tt.bytes), now)
			waited, now = waited+wait, now+int64(wait)
		}
		if waited < tt.least || waited > tt.most {
			t.Errorf("%s: they wait for %s in all, not for %s to %s", tt.name, waited, tt.least, tt.most)
		}
	}
}

// TestFlood: a data plane that sends requests without end neither blocks others nor fills the server's memory.
func TestFlood(t *testing.T) {
	both(t, func(t *testing.T, delta bool) {
		s := New(Options{})
		s.Set("", viewOf(t, "C a E a"))
		address := serve(t, s)
		other := connect(t, address, delta)
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second) // not a deadline: how long it floods
		defer stop()
		asked := make(chan int, 1)
		go func() { asked <- flood(ctx, dial(t, address), delta) }()
		other.want("C")
		other.takes("C a")
		<-ctx.Done()
		s.Set("", viewOf(t, "C a=2 E a"))
		other.takes("C a")
		// The transport between the two buffers 64 KiB at either end.
		if n := <-asked; n == 0 || n > 5*quotaAtOnce {
			t.Errorf("%d requests were taken in 3 s", n)
		}
	})
}

// flood requests different endpoints each time, as fast as it can, and returns the number of requests.
func flood(ctx context.Context, c discoveryv3.AggregatedDiscoveryServiceClient, delta bool) (n int) {
	var send func(names ...string) error
	node := &corev3.Node{Id: "flood"}
	if delta {
		g, err := c.DeltaAggregatedResources(ctx)
		if err != nil {
			return 0
		}
		send = func(names ...string) error {
			return g.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: EndpointType, ResourceNamesSubscribe: names})
		}
	} else {
		g, err := c.StreamAggregatedResources(ctx)
		if err != nil {
			return 0
		}
		send = func(names ...string) error {
			return g.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: EndpointType, ResourceNames: names})
		}
	}
	for send(fmt.Sprint("x", n%1000)) == nil {
		n++
	}
	return n
}

// types subscribes to n types.
func (p *peer) types(n int) {
	for i := range n {
		p.want(fmt.Sprint("type", i))
	}
}

func TestStamped(t *testing.T) {
	sent := make(chan Sent, 10)
	s := New(Options{Stamped: true, OnSent: func(x Sent) { sent <- x }})
	p := connect(t, serve(t, s), true)
	v := viewOf(t, "C a b")
	v.Since = 42
	s.Set("", v)
	p.want("C")
	g := p.takes("C a b")
	x := <-sent
	set, at, ok := TimesOf(g.version)
	if set != 42 || at != x.Time || !ok || x.Nonce != g.nonce || x.Resources != 2 || x.Node != "node" ||
		x.TypeURL != ClusterType {
		t.Errorf("%q, %+v", g.version, x)
	}
	for _, plain := range []string{"", "k3-17", "k3-17 set=1", "k3-17 set=x sent=2"} {
		if _, _, ok := TimesOf(plain); ok {
			t.Errorf("%q has times", plain)
		}
	}
}
