package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// What hostile nodes, coordinators and proxies share: keys, a stream on which anything can be said, and bytes on a
// connection.

// What a process of the product may take while it is attacked. A quiet coordinator has some 60 MiB, an agent in a trial
// some 80.
const (
	mostMemory  = 256 << 20 // bytes, at any moment of its life
	mostCPUPart = 0.9       // of one CPU on average, under floods without end
)

// attackedKeys makes keys of nodes with tare, and returns their directory.
func attackedKeys(t *testing.T, nodes ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	if o := tare(t, slices.Concat([]string{"node", "keys", "--dir", dir}, nodes)...); o.code != 0 {
		t.Fatal(o)
	}
	return dir
}

// tlsOf returns a TLS configuration for client or server, with the keys of a name in a directory, that trusts the
// authority there.
func tlsOf(t *testing.T, dir, name string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool, ServerName: "coordinator",
		ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"},
	}
}

// expired replaces the certificate of a name in a directory by an expired one from the same authority.
func expired(t *testing.T, dir, name string, use x509.ExtKeyUsage) {
	t.Helper()
	authority, err := tls.LoadX509KeyPair(filepath.Join(dir, "authority.pem"), filepath.Join(dir, "authority.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{use}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, &key.PublicKey, authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The service that nodes and coordinator speak (internal/experiment/cluster/message.go), with text for messages.
const joinMethod = "/tare.Cluster/Join"

// raw is a codec for gRPC that sends and receives text as it is.
type raw struct{}

func (raw) Name() string                  { return "json" }
func (raw) Marshal(v any) ([]byte, error) { return []byte(v.(string)), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*string) = string(data)
	return nil
}

// said is a message from the other side, with the fields that tests look at.
type said struct {
	Ping *struct {
		Number uint64 `json:"number"`
		Sent   int64  `json:"sent_ns"`
	} `json:"ping"`
	Hello   json.RawMessage `json:"hello"`
	Prepare *struct {
		ID   uint64 `json:"id"`
		Data struct {
			Planned struct {
				Index int    `json:"index"`
				Arm   string `json:"arm"`
				Block int    `json:"block"`
			} `json:"planned"`
			Attempt int `json:"attempt"`
		} `json:"data"`
	} `json:"prepare"`
	Begin *struct {
		ID    uint64 `json:"id"`
		At    int64  `json:"at_ns"`
		Quiet int64  `json:"quiet_ns"`
	} `json:"begin"`
	Abandon  *struct{ ID uint64 } `json:"abandon"`
	Bye      *struct{}            `json:"bye"`
	Pong     *struct{}            `json:"pong"`
	Prepared *struct {
		ID uint64 `json:"id"`
	} `json:"prepared"`
	Record *struct {
		ID     uint64          `json:"id"`
		Error  string          `json:"error"`
		Record json.RawMessage `json:"record"`
	} `json:"record"`
}

// hear reads one message.
func hear(s interface{ RecvMsg(any) error }) (m said, err error) {
	var text string
	if err := s.RecvMsg(&text); err != nil {
		return m, err
	}
	return m, json.Unmarshal([]byte(text), &m)
}

// joinAs opens a stream to a coordinator with the keys of a node, and returns it with a function that closes it. Both
// are nil if the coordinator accepts no stream.
func joinAs(t *testing.T, address string, config *tls.Config) (grpc.ClientStream, func()) {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, joinMethod)
	if err != nil {
		cancel()
		cc.Close()
		return nil, nil
	}
	return s, func() { cancel(); cc.Close() }
}

// wire is one connection on which any bytes of HTTP/2 can be sent.
type wire struct {
	net.Conn
	*http2.Framer
}

// newWire speaks HTTP/2 on a connection, as the side that connects or that listens.
func newWire(c net.Conn, connects bool) (wire, error) {
	w := wire{c, http2.NewFramer(c, c)}
	w.AllowIllegalWrites, w.AllowIllegalReads = true, true
	if connects {
		if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
			return w, err
		}
	} else if _, err := c.Read(make([]byte, len(http2.ClientPreface))); err != nil {
		return w, err
	}
	return w, w.WriteSettings()
}

// begin opens a stream, with the given number, of the service that nodes use.
func (w wire) begin(stream uint32, more ...hpack.HeaderField) error {
	return w.call(stream, joinMethod, more...)
}

// call opens a stream of any method, by its number.
func (w wire) call(stream uint32, method string, more ...hpack.HeaderField) error {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"},
		{Name: ":path", Value: method}, {Name: ":authority", Value: "coordinator"}, {Name: "te", Value: "trailers"},
		{Name: "content-type", Value: "application/grpc+json"}}, more...) {
		if err := e.WriteField(f); err != nil {
			return err
		}
	}
	const most = 16 << 10
	text := b.Bytes()
	first := min(most, len(text))
	err := w.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: text[:first],
		EndHeaders: first == len(text)})
	for text = text[first:]; err == nil && len(text) > 0; {
		n := min(most, len(text))
		err = w.WriteContinuation(stream, n == len(text), text[:n])
		text = text[n:]
	}
	return err
}

// ended reads what the other side sends, and reports whether it ends the stream.
func (w wire) ended() bool {
	for {
		f, err := w.ReadFrame()
		if err != nil {
			return hungUp(err)
		}
		h := f.Header()
		if h.Type == http2.FrameRSTStream || h.Type == http2.FrameGoAway ||
			h.Type == http2.FrameHeaders && h.Flags.Has(http2.FlagHeadersEndStream) {
			return true
		}
	}
}

// hungUp reports, from the error of reading from a connection, whether the other side has ended it.
func hungUp(err error) bool {
	var timeout net.Error
	return !errors.As(err, &timeout) || !timeout.Timeout()
}

// drain reads what the other side sends until it hangs up or the deadline passes.
func (w wire) drain() {
	buf := make([]byte, 32<<10)
	for {
		if _, err := w.Read(buf); err != nil {
			return
		}
	}
}

// flood calls the given function repeatedly for a while, or until the other side hangs up. It reads what comes back.
func (w wire) flood(length time.Duration, say func() error) {
	go w.drain()
	for end := time.Now().Add(length); time.Now().Before(end); {
		for range 100 {
			if say() != nil {
				return
			}
		}
	}
}

// taken holds what a process has used so far.
type taken struct {
	memory int64 // peak, in bytes
	cpu    time.Duration
	files  int
	at     time.Time
}

// used reads what a process has used until now.
func used(t *testing.T, pid int) taken {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("the attacked process is gone: %v", err)
	}
	u := taken{at: time.Now(), memory: peakIn(status)}
	if u.memory == 0 {
		t.Fatalf("the attacked process has ended: %s", status)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	field := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, f := range field[11:13] { // utime and stime, in hundredths
		n, _ := strconv.Atoi(f)
		u.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	u.files = len(entries)
	return u
}

// bears fails the test if the process has used more than it may, since the given reading.
func bears(t *testing.T, pid int, since taken) {
	t.Helper()
	u := used(t, pid)
	part := (u.cpu - since.cpu).Seconds() / u.at.Sub(since.at).Seconds()
	t.Logf("at most %d MiB, %.0f %% of a CPU, %d files", u.memory>>20, 100*part, u.files)
	if u.memory > mostMemory {
		t.Errorf("it took %d MiB", u.memory>>20)
	}
	if u.at.Sub(since.at) > time.Second && part > mostCPUPart {
		t.Errorf("it took %.0f %% of a CPU", 100*part)
	}
}

// noEscapes fails the test if text could steer a terminal.
func noEscapes(t *testing.T, what, text string) {
	t.Helper()
	if at := strings.IndexFunc(text, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' ||
			r >= 0x7f && r < 0xa0 || r == '\u202e'
	}); at >= 0 {
		t.Errorf("%s has raw escapes: %q", what, text[max(0, at-40):min(len(text), at+40)])
	}
}

// sideBySide calls all functions at the same time, and waits for them.
func sideBySide(all ...func()) {
	var wg sync.WaitGroup
	for _, do := range all {
		wg.Go(do)
	}
	wg.Wait()
}
