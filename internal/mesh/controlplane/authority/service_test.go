package authority

import (
	"context"
	"crypto/x509"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// logged is a test's log.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// serve runs the certificate service of an authority as a control plane does, and returns its address.
func serve(t testing.TB, a *Authority, o ServiceOptions, more ...func(*grpc.Server)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(a.ServerCredentials()), grpc.StreamInterceptor(a.RequireIdentity()))
	NewService(a, o).Register(s)
	for _, register := range more {
		register(s)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); served.Wait() })
	return l.Addr().String()
}

// raw is a message as bytes. The tests encode messages themselves, and share no code with the service.
type raw struct{ bytes []byte }

type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.(*raw).bytes, nil }
func (rawCodec) Unmarshal(b []byte, v any) error {
	v.(*raw).bytes = append([]byte(nil), b...)
	return nil
}
func (rawCodec) Name() string { return "proto" }
func text(b []byte, n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

var _ encoding.Codec = rawCodec{}

// ask sends a request, with a token or a certificate or neither, and returns the certificates of the answer.
func ask(t testing.TB, address string, roots []byte, c Credentials, token Token, message []byte) ([]string, error) {
	t.Helper()
	c.Roots = roots
	own := func() (Credentials, error) { return c, nil }
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(ClientTLS(own, ControlPlane(DefaultTrustDomain)))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+string(token))
	}
	answer := &raw{}
	err = conn.Invoke(ctx, "/istio.v1.auth.IstioCertificateService/CreateCertificate", &raw{message}, answer,
		grpc.ForceCodec(rawCodec{}))
	if err != nil {
		return nil, err
	}
	var chain []string
	for b := answer.bytes; len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || number != 1 || kind != protowire.BytesType {
			t.Fatalf("field %d of type %d in the answer", number, kind)
		}
		s, m := protowire.ConsumeString(b[n:])
		if m < 0 {
			t.Fatal("the answer is cut")
		}
		chain, b = append(chain, s), b[n+m:]
	}
	return chain, nil
}

func TestService(t *testing.T) {
	var log logged
	a := newAuthority(t, Options{Log: log.add})
	accounts := newCluster(t)
	address := serve(t, a, ServiceOptions{Accounts: accounts.accounts})
	key := must(newKey())
	good := csr(t, key, x509.CertificateRequest{URIs: uris(webID)})
	plain := slices.Clip(text(nil, 1, good)) // so that appending to it copies
	roots := a.RootsPEM()

	// The first certificate, with a token.
	token := accounts.token(t, "web")
	chain, err := ask(t, address, roots, Credentials{}, token, plain)
	if err != nil || len(chain) != 2 || chain[1] != string(roots) {
		t.Fatalf("%d certificates, %v", len(chain), err)
	}
	c := Credentials{Chain: []byte(chain[0]), Key: must(keyPEM(key)), Roots: roots}
	if err := c.check(); err != nil || c.ID != webID {
		t.Fatalf("%s, %v", c.ID, err)
	}
	if err := verifyAt(c, roots, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := openssl(t, c, roots, time.Now()); err != nil {
		t.Fatal(err)
	}

	// The next one, with that certificate, and with a requested life.
	wishing := func(seconds uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(plain, 3, protowire.VarintType), seconds)
	}
	chain, err = ask(t, address, roots, c, "", wishing(90))
	if err != nil {
		t.Fatal(err)
	}
	short := leafOf(t, Credentials{Chain: []byte(chain[0])})
	if left := time.Until(short.NotAfter); left > 90*time.Second || left < 60*time.Second {
		t.Errorf("a certificate for 90 s ends in %s", left)
	}
	chain, err = ask(t, address, roots, c, "", wishing(1<<40))
	if err != nil || time.Until(leafOf(t, Credentials{Chain: []byte(chain[0])}).NotAfter) > DefaultLife {
		t.Errorf("a life that is too long: %v", err)
	}

	other := text(nil, 1, csr(t, key, x509.CertificateRequest{URIs: uris(apiID)}))
	metadata := must(proto.Marshal(must(structpb.NewStruct(map[string]any{"ImpersonatedIdentity": apiID}))))
	self := must(proto.Marshal(must(structpb.NewStruct(map[string]any{"ImpersonatedIdentity": webID, "CertSigner": "x"}))))
	foreign := credentialsOf(t, newAuthority(t, Options{}), webID)
	apiToken := accounts.token(t, "api")
	for _, c := range []struct {
		name    string
		with    Credentials
		token   Token
		message []byte
		want    codes.Code
	}{
		{"no proof", Credentials{}, "", plain, codes.Unauthenticated},
		{"a token twice", Credentials{}, token, plain, codes.OK},
		{"a wrong token", Credentials{}, token[1:], plain, codes.Unauthenticated},
		{"another's request by certificate", c, "", other, codes.PermissionDenied},
		{"another's request by token", Credentials{}, apiToken, plain, codes.PermissionDenied},
		{"another's subject_id", c, "", text(plain, 2, apiID), codes.PermissionDenied},
		{"one's own subject_id", c, "", text(plain, 2, webID), codes.OK},
		{"another's metadata", c, "", text(plain, 4, string(metadata)), codes.PermissionDenied},
		{"one's own metadata", c, "", text(plain, 4, string(self)), codes.OK},
		{"an unknown field", c, "", text(plain, 99, "x"), codes.OK},
		{"a certificate of another authority", foreign, "", plain, codes.Unavailable},
		{"a certificate before a token of another", c, apiToken, other, codes.PermissionDenied},
		{"no request", c, "", nil, codes.InvalidArgument},
		{"not a message", c, "", []byte{0xff}, codes.Internal},
		{"too long", c, "", text(nil, 1, strings.Repeat("A", 1<<20)), codes.InvalidArgument},
		{"long metadata", c, "", text(plain, 4, strings.Repeat("\x0a\x00", maxMessage/2)), codes.InvalidArgument},
	} {
		_, err := ask(t, address, roots, c.with, c.token, c.message)
		if status.Code(err) != c.want {
			t.Errorf("%s: %v; want %s", c.name, err, c.want)
		}
	}
	for _, part := range []string{"another identity", apiID, webID, "127.0.0.1"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, &log)
		}
	}
	for _, secret := range []string{signatureOf(token), signatureOf(apiToken), "PRIVATE"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log shows a secret:\n%s", &log)
		}
	}
}

// signatureOf returns the token's signature, the part that cannot be forged.
func signatureOf(token Token) string { return string(token)[strings.LastIndex(string(token), ".")+1:] }

// TestUnreadRequest: a peer that has not authenticated is refused before its request has arrived.
func TestUnreadRequest(t *testing.T) {
	a := newAuthority(t, Options{})
	address := serve(t, a, ServiceOptions{}, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, discoveryv3.UnimplementedAggregatedDiscoveryServiceServer{})
	})
	own := func() (Credentials, error) { return Credentials{Roots: a.RootsPEM()}, nil }
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(ClientTLS(own, ControlPlane(DefaultTrustDomain)))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const ads = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
	for _, method := range []string{methodName, ads + "StreamAggregatedResources", ads + "DeltaAggregatedResources"} {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(newResponse()); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// TestPlaintext: tokens are not accepted without TLS.
func TestPlaintext(t *testing.T) {
	a := newAuthority(t, Options{})
	accounts := newCluster(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	NewService(a, ServiceOptions{Accounts: accounts.accounts}).Register(s)
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+string(accounts.token(t, "web")))
	message := requestMessage(csr(t, must(newKey()), x509.CertificateRequest{}))
	if err := conn.Invoke(ctx, methodName, message, newResponse()); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
}

// TestRates: each identity has its own limit, and hosts that guess tokens are refused, while peers with a certificate
// are served.
func TestRates(t *testing.T) {
	var log logged
	a := newAuthority(t, Options{Log: log.add})
	accounts := newCluster(t)
	web, api := accounts.token(t, "web"), accounts.token(t, "api")
	address := serve(t, a, ServiceOptions{Accounts: accounts.accounts, Rate: 0.001, Burst: 2})
	message := text(nil, 1, csr(t, must(newKey()), x509.CertificateRequest{}))
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		if _, err := ask(t, address, a.RootsPEM(), Credentials{}, web, message); status.Code(err) != want {
			t.Errorf("request %d: %v; want %s", i, err, want)
		}
	}
	if _, err := ask(t, address, a.RootsPEM(), Credentials{}, api, message); err != nil {
		t.Errorf("another identity: %v", err)
	}
	s := NewService(a, ServiceOptions{Accounts: accounts.accounts})
	s.refused = newLimits(0, refusedBurst)
	for range refusedBurst {
		s.refused.take("127.0.0.1")
	}
	if s.refused.open("127.0.0.1") || !s.refused.open("127.0.0.2") {
		t.Error("the bound of hosts does not hold, or holds for others")
	}
	for _, c := range []Credentials{{Roots: a.RootsPEM()}, credentialsOf(t, a, webID)} {
		ctx, err := handshake(t, a, c, 0)
		if err != nil {
			t.Fatal(err)
		}
		who, err := s.authenticate(metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+string(web))))
		if who.id != c.ID || c.ID == "" && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%q at a host that guesses tokens is %q, %v", c.ID, who.id, err)
		}
	}
}

func TestLimits(t *testing.T) {
	l := newLimits(0, 1)
	for i := range 2 * maxBuckets {
		l.take(string(rune(i)) + "peer")
	}
	if len(l.by) > maxBuckets+1 {
		t.Errorf("%d buckets", len(l.by))
	}
	if l.take("a newcomer") {
		t.Error("there is no room, and no common bound")
	}
	for addr, want := range map[net.Addr]string{
		&net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 4}:        "10.1.2.3",
		&net.TCPAddr{IP: net.ParseIP("::ffff:10.1.2.3"), Port: 4}: "10.1.2.3",
		&net.TCPAddr{IP: net.ParseIP("2001:db8:1:2:3:4:5:6")}:     "2001:db8:1:2::/64",
		&net.UnixAddr{Name: "/x"}:                                 "",
	} {
		if got := hostOf(addr); got != want {
			t.Errorf("%v: %q; want %q", addr, got, want)
		}
	}
}

// TestAgent: an agent gets a certificate with its token, renews it with the certificate, goes through a rollover of
// the root, and makes a new key each time.
func TestAgent(t *testing.T) {
	t.Parallel()
	var log logged
	a := newAuthority(t, Options{Life: 30 * time.Second, Log: log.add})
	accounts := newCluster(t)
	address := serve(t, a, ServiceOptions{Accounts: accounts.accounts, Rate: 100})
	var got atomic.Int32
	var mu sync.Mutex
	var last Credentials
	seen := map[string]bool{}
	agent := &Agent{
		Address: address, Identity: webID, Roots: a.RootsPEM(),
		ReadToken:  func() (Token, error) { return accounts.token(t, "web"), nil },
		RenewAfter: 0.01, Log: log.add,
		OnChange: func(c Credentials) error {
			mu.Lock()
			defer mu.Unlock()
			last, seen[string(c.Key)] = c, true
			got.Add(1)
			return nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- agent.Run(ctx) }()
	more := func() {
		t.Helper()
		for until := got.Load() + 2; got.Load() < until; time.Sleep(10 * time.Millisecond) {
			select {
			case err := <-ran:
				t.Fatalf("the agent has ended: %v\n%s", err, &log)
			default:
			}
		}
	}
	more()
	for range 3 {
		if err := a.Advance(true); err != nil {
			t.Fatal(err)
		}
		more()
	}
	mu.Lock()
	if len(seen) != int(got.Load()) || string(last.Roots) != string(a.RootsPEM()) {
		t.Errorf("%d keys in %d certificates; the roots are those of the authority: %v", len(seen), got.Load(),
			string(last.Roots) == string(a.RootsPEM()))
	}
	mu.Unlock()
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// TestAgentRefused: an agent whose token is refused ends with the reason, which does not contain the token.
func TestAgentRefused(t *testing.T) {
	a := newAuthority(t, Options{})
	accounts := newCluster(t)
	address := serve(t, a, ServiceOptions{Accounts: accounts.accounts})
	token := newCluster(t).token(t, "web") // of another cluster
	agent := &Agent{Address: address, Identity: webID, Roots: a.RootsPEM(),
		ReadToken: func() (Token, error) { return token, nil }}
	err := agent.Run(t.Context())
	if err == nil || strings.Contains(err.Error(), signatureOf(token)) || !strings.Contains(err.Error(), webID) {
		t.Errorf("%v", err)
	}
	agent.Roots, token = newAuthority(t, Options{}).RootsPEM(), accounts.token(t, "web")
	if _, err = agent.Request(t.Context(), Credentials{}); err == nil {
		t.Error("a control plane of another root was believed")
	}
}

// FuzzMessage: whatever message a peer sends, it gets at most a certificate of its own identity, which cannot sign
// others.
func FuzzMessage(f *testing.F) {
	good := csr(f, must(newKey()), x509.CertificateRequest{URIs: uris(webID)})
	message := text(nil, 1, good)
	f.Add(message)
	f.Add(text(message, 2, apiID))
	f.Add(protowire.AppendVarint(protowire.AppendTag(message, 3, protowire.VarintType), 1<<63))
	for _, v := range []any{apiID, 1.0, nil, true, []any{apiID}, map[string]any{"x": apiID}} {
		s := must(structpb.NewStruct(map[string]any{"ImpersonatedIdentity": v}))
		f.Add(text(message, 4, string(must(proto.Marshal(s)))))
	}
	a := newAuthority(f, Options{})
	s := NewService(a, ServiceOptions{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readMessage(b)
		if err != nil {
			return
		}
		l, _, err := s.sign(webID, r)
		if err != nil {
			return
		}
		c := leafOf(t, Credentials{Chain: l.pem})
		if id, err := idOf(c); err != nil || id != webID || c.NotAfter.After(time.Now().Add(DefaultLife)) {
			t.Errorf("%s, %v, until %s", id, err, c.NotAfter)
		}
	})
}

// FuzzAnswer: an agent accepts from a control plane only a certificate of its own key and identity, signed by one of
// the roots in the answer.
func FuzzAnswer(f *testing.F) {
	a := newAuthority(f, Options{})
	key := must(newKey())
	l := must(a.sign(a.trust.Load(), webID, key.Public(), time.Hour))
	other := must(a.sign(a.trust.Load(), apiID, key.Public(), time.Hour))
	stranger := must(a.sign(a.trust.Load(), webID, must(newKey()).Public(), time.Hour))
	roots, foreign := string(a.RootsPEM()), string(newAuthority(f, Options{}).RootsPEM())
	elsewhere := string(newAuthority(f, Options{TrustDomain: "other.local"}).RootsPEM())
	agent := &Agent{Identity: webID}
	take := func(b []byte) (Credentials, error) {
		m := newResponse()
		if err := proto.Unmarshal(b, m); err != nil {
			return Credentials{}, err
		}
		return agent.accept(m, key)
	}
	good := text(text(nil, 1, string(l.pem)), 1, roots)
	if _, err := take(good); err != nil {
		f.Fatal(err)
	}
	bad := [][]byte{
		nil, text(nil, 1, string(l.pem)), text(text(nil, 1, string(other.pem)), 1, roots),
		text(text(nil, 1, string(stranger.pem)), 1, roots), text(text(nil, 1, string(l.pem)), 1, foreign),
		text(text(nil, 1, string(l.pem)), 1, roots+elsewhere), text(text(nil, 1, roots), 1, roots),
	}
	for i, b := range bad {
		if _, err := take(b); err == nil {
			f.Errorf("answer %d was taken", i)
		}
		f.Add(b)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := take(b)
		if err != nil {
			return
		}
		checkKey(t, c)
		if err := verifyAt(c, c.Roots, time.Now()); err != nil || c.ID != webID {
			t.Errorf("%s, %v", c.ID, err)
		}
	})
}

// BenchmarkService measures one request of an agent for a certificate, over TLS on a kept loopback connection: the
// cost of the authority and of gRPC on both sides. The agent's key is made once.
func BenchmarkService(b *testing.B) {
	a := newAuthority(b, Options{})
	address := serve(b, a, ServiceOptions{Rate: 1e9, Burst: 1e9})
	c := credentialsOf(b, a, webID)
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(
		ClientTLS(func() (Credentials, error) { return c, nil }, ControlPlane(DefaultTrustDomain)))))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	message := requestMessage(csr(b, must(newKey()), x509.CertificateRequest{URIs: uris(webID)}))
	for b.Loop() {
		if err := conn.Invoke(b.Context(), methodName, message, newResponse()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "certificates/s")
}
