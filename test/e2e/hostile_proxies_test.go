package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sys/unix"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/internal/mesh/fleet"
	"tare/test/envoy/secret"
	"tare/test/fleettest"
	"tare/test/long"
	"tare/test/ring"
)

// What an attack of a proxy may cost the control plane, besides mostMemory.
const (
	siegeCPU     = 5 * time.Second // with two good proxies served
	idleSiegeCPU = 1500 * time.Millisecond
	siegeMemory  = 512 << 20 // bytes of RLIMIT_DATA, which protects the machine from a control plane without bounds
)

// How long busy attacks, idle ones and those that end by themselves last; the last is a limit.
const (
	siegeLasts     = 700 * time.Millisecond
	idleSiegeLasts = 2 * time.Second
	siegeEnds      = time.Minute
)

// besiegers is how many services and proxies the mesh has. Two proxies are good, and the others are the attack's.
const besiegers = 20

// The proxies of an attack: the one that attacks, and one that it tries to impersonate.
var (
	hostileProxy = ring.Proxy(2)
	otherProxy   = ring.Proxy(3)
)

// proxyAttack is one way in which a proxy of a mesh, or a stranger, can be hostile to the control plane.
type proxyAttack struct {
	name    string
	mtls    bool     // proxies must prove who they are
	idle    bool     // next to nothing is sent, and it must cost next to nothing
	ends    bool     // it ends by itself: what it waits for can be late
	stays   bool     // it goes on until the control plane has ended
	flags   []string // further flags of the control plane
	changes int      // how often the configuration changes during the attack; 0 means once
	do      func(s *siege)
}

// TestHostileProxies: whatever a proxy does, with or without a certificate, the control plane survives it, sends the
// other proxies their configuration during the attack and after it, and exits with code 0.
func TestHostileProxies(t *testing.T) {
	long.Test(t, "15 s: a campaign of attacks on a control plane")
	leavesNothing(t)
	busy, idle := make(chan struct{}, 3), make(chan struct{}, 8) // how many at a time
	var all sync.WaitGroup
	for i, a := range proxyAttacks {
		slots := busy
		if a.idle {
			slots = idle
		}
		all.Go(func() { // not parallel tests: only one for each CPU would run at a time, and most attacks only wait
			slots <- struct{}{}
			defer func() { <-slots }()
			t.Run(a.name, func(t *testing.T) { a.run(t, i%2 == 0) })
		})
	}
	all.Wait()
}

// siege is a control plane under attack.
type siege struct {
	*testing.T
	proxyAttack
	plane   *process
	address string
	work    string // a directory that is the control plane's
	over    context.Context
	good    *fleet.Fleet
	kept    fleettest.Kept // the resources that the proxies of good have
	changed int
}

// run attacks a control plane that serves one good proxy, and then connects another.
func (a proxyAttack) run(t *testing.T, delta bool) {
	s := &siege{T: t, proxyAttack: a, work: t.TempDir()}
	s.start()
	o := fleet.Options{
		Address: s.address, Delta: delta, OnHave: s.kept.Keep, Again: 50 * time.Millisecond,
		Node:   func(i int) *corev3.Node { return &corev3.Node{Id: ring.Proxy(i)} },
		MarkOf: func(*endpointv3.ClusterLoadAssignment) fleet.Mark { return fleet.Mark{} },
	}
	if a.mtls {
		o.TLS = func(i int) *tls.Config { return s.tls(ring.Proxy(i)) }
	}
	s.good = fleet.New(2, o)
	defer s.good.Close()
	s.serves(0)
	before := used(t, s.plane.pid)
	lasts := siegeLasts
	switch {
	case a.ends || a.stays:
		lasts = siegeEnds
	case a.idle:
		lasts = idleSiegeLasts
	}
	lasts += time.Duration(a.changes) * siegeLasts / 2
	var stop context.CancelFunc
	s.over, stop = context.WithTimeout(context.Background(), lasts)
	attacked := make(chan struct{})
	go func() {
		defer close(attacked)
		a.do(s)
	}()
	defer func() { stop(); <-attacked }()
	var slowest time.Duration
	for range max(1, a.changes) {
		time.Sleep(siegeLasts / 4)
		s.changed++
		s.write()
		began := time.Now()
		s.serves(0)
		slowest = max(slowest, time.Since(began))
	}
	if !a.stays {
		<-attacked
		stop()
	}
	began := time.Now()
	s.serves(1)
	after := time.Since(began)
	u := used(t, s.plane.pid)
	cpu := u.cpu - before.cpu
	t.Logf("at most %d MiB, %d ms of CPU time; the good proxy had a change after %d ms, another was served in %d ms",
		u.memory>>20, cpu.Milliseconds(), slowest.Milliseconds(), after.Milliseconds())
	if u.memory > mostMemory {
		t.Errorf("it took %d MiB", u.memory>>20)
	}
	if cpu > siegeCPU || a.idle && cpu > idleSiegeCPU {
		t.Errorf("it took %s of CPU time", cpu)
	}
	s.good.Close()
	s.finish()
}

// start starts the control plane.
func (s *siege) start() {
	s.Helper()
	for _, name := range []string{"credentials", "roots", "tmp", "here"} {
		if err := os.Mkdir(filepath.Join(s.work, name), 0o700); err != nil {
			s.Fatal(err)
		}
	}
	s.write()
	args := []string{"controlplane", "--human", "--config", filepath.Join(s.work, "mesh.yaml"),
		"--credentials", filepath.Join(s.work, "credentials")}
	if s.mtls {
		keys := filepath.Join(s.work, "keys.json")
		key := clusterKey()
		text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
		if err == nil {
			err = os.WriteFile(keys, text, 0o600)
		}
		if err != nil {
			s.Fatal(err)
		}
		args = append(args, "--roots", filepath.Join(s.work, "roots"), "--service-account-keys", keys)
	}
	s.plane = command{args: append(args, s.flags...), dir: filepath.Join(s.work, "here"), timeout: 3 * time.Minute,
		env: []string{"TMPDIR=" + filepath.Join(s.work, "tmp")}}.start(s.T)
	limit := unix.Rlimit{Cur: siegeMemory, Max: siegeMemory}
	if err := unix.Prlimit(s.plane.pid, unix.RLIMIT_DATA, &limit, nil); err != nil {
		s.Fatal(err)
	}
	whileItRuns(s.T, s.plane, func() bool {
		if found := regexp.MustCompile(`listens at (\S+): `).FindStringSubmatch(s.plane.stdout.String()); found != nil {
			s.address = found[1]
		}
		return s.address != ""
	})
}

// config returns the mesh as it is now.
func (s *siege) config() *proxyconfig.Config {
	m := ring.Mesh{Services: besiegers, Calls: 3}
	if s.mtls {
		m.MTLS = "strict"
	}
	return m.Config(1 + s.changed)
}

// write writes the mesh as it is now to the control plane's file.
func (s *siege) write() {
	s.Helper()
	file := filepath.Join(s.work, "mesh.yaml")
	b, err := json.Marshal(s.config())
	if err == nil {
		err = os.WriteFile(file+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		s.Fatal(err)
	}
}

// serves connects a good proxy, and waits until it has everything that the mesh has for it. It fails the test after a
// minute.
func (s *siege) serves(proxy int) {
	s.Helper()
	if err := s.good.Connect(s.Context(), proxy, proxy+1); err != nil {
		s.Fatal(err)
	}
	m, err := s.config().Compile()
	if err != nil {
		s.Fatal(err)
	}
	has := hasTold
	if s.mtls {
		has = hasAll
	}
	want := toldBy(s.T, s.good, m, ring.Proxy(proxy))
	for deadline := time.Now().Add(time.Minute); !has(s.kept.Has(proxy), want); time.Sleep(2 * time.Millisecond) {
		select {
		case <-s.plane.done:
			s.Fatalf("the control plane has ended: %s", s.plane.wait(s.T))
		default:
		}
		if time.Now().After(deadline) {
			s.Fatalf("the good proxy has %v, not %v", s.kept.Has(proxy), want)
		}
	}
}

// finish ends the control plane, which must have written nothing but what it is to write.
func (s *siege) finish() {
	s.Helper()
	s.plane.signal(s.T, syscall.SIGTERM)
	o := s.plane.wait(s.T)
	if len(o.stdout) > 1<<20 {
		s.Errorf("it printed %d bytes", len(o.stdout))
		o.stdout = o.stdout[:10_000]
	}
	if o.code != 0 || o.stderr != "" {
		s.Error(o)
	}
	noEscapes(s.T, "standard output", o.stdout)
	files, most := 0, 1+4*besiegers // the mesh, and for each proxy a directory and its bootstrap
	if s.mtls {
		most += 2 + 2*besiegers // the keys of the service accounts, roots, and two files for each proxy
	}
	err := filepath.WalkDir(s.work, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files++
			if where := filepath.Base(filepath.Dir(path)); where == "tmp" || where == "here" {
				s.Errorf("it made %s", path)
			}
		}
		return err
	})
	if err != nil || files > most {
		s.Errorf("there are %d files, %v", files, err)
	}
	for _, dir := range []string{"/tmp", s.work, filepath.Join(s.work, "credentials")} {
		if _, err := os.Lstat(filepath.Join(dir, "tare-owned")); err == nil {
			s.Errorf("tare-owned was made in %s", dir)
		}
	}
}

// clusterKey is the key with which the API server of a cluster signs the tokens of its pods.
var clusterKey = sync.OnceValue(func() jose.JSONWebKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return jose.JSONWebKey{Key: key, KeyID: "cluster", Algorithm: string(jose.ES256), Use: "sig"}
})

// lasts reports whether the attack is still to go on.
func (s *siege) lasts() bool { return s.over.Err() == nil }

// credentials reads the credentials of a proxy from its files.
func (s *siege) credentials(proxy string) (authority.Credentials, error) {
	return secret.Credentials(filepath.Join(s.work, "credentials", proxy))
}

// tls returns the TLS configuration of a proxy.
func (s *siege) tls(proxy string) *tls.Config {
	return s.tlsBy(func() (authority.Credentials, error) { return s.credentials(proxy) })
}

func (s *siege) tlsBy(own func() (authority.Credentials, error)) *tls.Config {
	c := authority.ClientTLS(own, authority.ControlPlane(authority.DefaultTrustDomain))
	c.NextProtos = []string{"h2"}
	return c
}

// conn opens a connection without TLS, which ends with the attack; nil if that fails.
func (s *siege) conn() net.Conn {
	c, err := (&net.Dialer{}).DialContext(s.over, "tcp", s.address)
	if err != nil {
		return nil
	}
	context.AfterFunc(s.over, func() { c.Close() })
	return c
}

// wire opens a connection as the hostile proxy, on which any bytes of HTTP/2 can be sent; ok is false if that fails.
func (s *siege) wire() (w wire, ok bool) {
	c := s.conn()
	if c == nil {
		return w, false
	}
	if s.mtls {
		c = tls.Client(c, s.tls(hostileProxy))
	}
	w, err := newWire(c, true)
	return w, err == nil
}

// grpc opens a connection of gRPC, by TLS with the given configuration or, if that is nil, without TLS. It ends with
// the attack.
func (s *siege) grpc(by *tls.Config) *grpc.ClientConn {
	c := insecure.NewCredentials()
	if by != nil {
		c = credentials.NewTLS(by)
	}
	cc, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(c),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(256<<20)))
	if err != nil {
		s.Error(err)
		return nil
	}
	context.AfterFunc(s.over, func() { cc.Close() })
	return cc
}

// The methods of the discovery service, and the method that requests a certificate.
const (
	worldMethod   = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaMethod   = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	certifyMethod = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
)

// speech is a stream of the discovery service on which a proxy can send anything.
type speech struct {
	grpc.ClientStream
	s *siege
}

// speak opens a stream of a connection.
func (s *siege) speak(cc *grpc.ClientConn, method string) *speech {
	g, err := cc.NewStream(s.over, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return &speech{failed{err: err}, s}
	}
	return &speech{g, s}
}

// failed is a stream that could not be opened.
type failed struct {
	grpc.ClientStream
	err error
}

func (f failed) SendMsg(any) error { return f.err }
func (f failed) RecvMsg(any) error { return f.err }
func (f failed) CloseSend() error  { return f.err }

// stream opens a stream on a new connection, as the hostile proxy.
func (s *siege) stream(method string) *speech {
	var by *tls.Config
	if s.mtls {
		by = s.tls(hostileProxy)
	}
	return s.speak(s.grpc(by), method)
}

// say sends a message, and reports whether that succeeded.
func (x *speech) say(m proto.Message) bool { return x.text(encodedText(m)) }

func (x *speech) text(b string) bool { return x.SendMsg(b) == nil }

// encodedText returns a message as it is encoded on the wire.
func encodedText(m proto.Message) string {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // the test made it
	}
	return string(b)
}

// hear waits for a response on a stream of deltas; false if the stream ends.
func (x *speech) hear() (*discoveryv3.DeltaDiscoveryResponse, bool) {
	var text string
	m := &discoveryv3.DeltaDiscoveryResponse{}
	return m, x.RecvMsg(&text) == nil && proto.Unmarshal([]byte(text), m) == nil
}

// drain reads until the stream ends, and returns the code that it ends with.
func (x *speech) drain() codes.Code {
	for {
		var text string
		if err := x.RecvMsg(&text); err != nil {
			return status.Code(err)
		}
	}
}

// refused fails the test unless the control plane ends the stream with a code.
func (x *speech) refused(want codes.Code, what string) {
	if got := x.drain(); got != want {
		x.s.Errorf("%s: %s, not %s", what, got, want)
	}
}

// node returns the node that the hostile proxy says it is.
func node() *corev3.Node { return &corev3.Node{Id: hostileProxy} }

// wants returns a request, on a stream of deltas, for the named resources of a type, or for all of them if no name is
// given.
func wants(url string, names ...string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: url, ResourceNamesSubscribe: names}
}

// wantsWorld returns the same request on a stream of the state of the world.
func wantsWorld(url string, names ...string) *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{Node: node(), TypeUrl: url, ResourceNames: names}
}

// answers returns the acknowledgement of a response or, with a reason, its rejection.
func answers(url, nonce, reason string) *discoveryv3.DeltaDiscoveryRequest {
	m := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: nonce}
	if reason != "" {
		m.ErrorDetail = &statuspb.Status{Code: 3, Message: reason}
	}
	return m
}

// manyNames returns n names of the given length, all different from those of other rounds.
func manyNames(n, length, round int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%0*d", length, round*1_000_000+i)
	}
	return names
}

// wantsAll returns requests for all resources.
func wantsAll() []*discoveryv3.DeltaDiscoveryRequest {
	return []*discoveryv3.DeltaDiscoveryRequest{wants(resource.ClusterType), wants(resource.EndpointType, "*"),
		wants(resource.ListenerType), wants(resource.RouteType, "*")}
}
