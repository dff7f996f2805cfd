package http

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// quiet discards what a server logs when clients leave.
var quiet = log.New(io.Discard, "", 0)

// echoTLS starts net/http's server with TLS, which echoes bodies.
func echoTLS(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			_, _ = w.Write(b)
		}
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// pair writes the certificate and the key of a server as files, for servers that others wrote.
func pair(t *testing.T, s *httptest.Server) (certificate, key string) {
	t.Helper()
	dir := t.TempDir()
	encode := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	private, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return encode("certificate.pem", "CERTIFICATE", s.Certificate().Raw), encode("key.pem", "PRIVATE KEY", private)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	url := echoTLS(t).URL + "/"
	for _, body := range []int{0, 100, 3 << 20} {
		for _, p := range []Protocol{HTTP1, HTTP2} {
			works(t, Options{Targets: []string{url}, TLS: TLSUnverified, Protocol: p, Connections: 2, Body: body}, false)
		}
	}
	works(t, Options{Targets: []string{url}, TLS: TLSUnverified, Protocol: HTTP2, Connections: 2, Streams: 3,
		Body: 100 << 10}, false)

	listener, err := tls.Listen("tcp", "127.0.0.1:0", echoTLS(t).TLS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	works(t, Options{Targets: []string{"tcp://" + listener.Addr().String()}, TLS: TLSUnverified, Protocol: TCP,
		Connections: 2,
		Body:        50 << 10}, false)
}

// TestTLSByTheRequest: without keep-alive, each request has a TLS handshake, which is part of its latency.
func TestTLSByTheRequest(t *testing.T) {
	t.Parallel()
	url := echoTLS(t).URL + "/"
	for _, o := range []Options{{Protocol: HTTP1}, {Protocol: HTTP1, Recycle: true}, {Protocol: HTTP2}} {
		o.Targets, o.TLS, o.Connections, o.Drain, o.Timeout = []string{url}, TLSUnverified, 4, ample, ample
		r := run(t, o, 0, 300*time.Millisecond)
		shook, err := r.Histogram(load.Connect)
		if err != nil {
			t.Fatal(err)
		}
		if r.Done == 0 || len(r.Errors) > 0 || shook.TotalCount() != r.Done {
			t.Errorf("%s: %d done over %d connections, errors %v", o.Protocol, r.Done, shook.TotalCount(), r.Errors)
		}
	}
}

// TestConnectIsWithoutTheRequest: the time to make a connection ends before the request is written to it.
func TestConnectIsWithoutTheRequest(t *testing.T) {
	for _, mode := range []TLS{TLSOff, TLSUnverified} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
		}))
		s.Config.ErrorLog = quiet
		if mode == TLSOff {
			s.Start()
		} else {
			s.StartTLS()
		}
		t.Cleanup(s.Close)
		o := Options{Targets: []string{s.URL}, TLS: mode, Connections: 15, Threads: 1, Body: 16 << 20}
		g, err := Prepare(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(g.Close)
		w := g.workers[0]
		var parts []float64 // handshakes, as fractions of the time until the first write returned
		for i := range w.slots {
			slot, begin := &w.slots[w.free.pop()], pace.Now()
			w.start(int32(i), begin, begin)
			for slot.shook < 0 && slot.state == connecting {
				if err := w.wait(pace.Now(), begin+int64(ample)); err != nil {
					t.Fatal(err)
				}
			}
			parts = append(parts, float64(slot.shook)/float64(pace.Now()-begin))
			w.hangUp(slot)
		}
		slices.Sort(parts)
		t.Logf("TLS %s: %.2f", mode, parts)
		if median := parts[len(parts)/2]; median <= 0 || median > 0.9 {
			t.Errorf("TLS %s: connecting took %.0f %% of the time of connecting and writing", mode, 100*median)
		}
	}
}

// TestTLSVerifies: a certificate is verified by the roots of the machine and by the name in the URL, unless that is
// turned off.
func TestTLSVerifies(t *testing.T) {
	t.Parallel()
	s := echoTLS(t)
	certificate, _ := pair(t, s)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	for _, p := range []Protocol{HTTP1, HTTP2} {
		_, err := Prepare(t.Context(), Options{Targets: []string{s.URL}, Protocol: p, Connections: 1})
		var unknown x509.UnknownAuthorityError
		if !errors.As(err, &unknown) || fault.CodeOf(err) != fault.Machine ||
			!strings.Contains(fault.HintOf(err), "SSL_CERT_FILE") {
			t.Errorf("%s, roots of the machine: %v", p, err)
		}
		for host, good := range map[string]bool{"127.0.0.1": true, "localhost": false} {
			options, err := json.Marshal(Options{Targets: []string{"https://" + net.JoinHostPort(host, port)}, Protocol: p,
				Connections: 1})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), "TARE_TEST_LOAD="+string(options), "SSL_CERT_FILE="+certificate)
			said, _ := cmd.Output() // its input has ended: it says that it is ready, or why not
			if ready := strings.Contains(string(said), `"targets"`); ready != good {
				t.Errorf("%s, %s: it said %s", p, host, said)
			}
		}
	}
}

// TestTLSFailures: failed handshakes are counted by kind, and leave nothing behind.
func TestTLSFailures(t *testing.T) {
	good := echoTLS(t).TLS
	for kind, timeout := range map[string]time.Duration{
		"connect-timeout": 50 * time.Millisecond, // never answered: the deadline under test
		"tls":             ample,                 // closed
	} {
		var accepted atomic.Int64
		url := server(t, func(c net.Conn) {
			if accepted.Add(1) == 1 {
				_ = tls.Server(c, good).Handshake()
				return
			}
			if kind == "connect-timeout" {
				_, _ = io.Copy(io.Discard, c)
			}
		})
		before := runtime.NumGoroutine()
		o := Options{Targets: []string{strings.Replace(url, "http:", "https:", 1)}, TLS: TLSUnverified, Rate: 100,
			Connections: 4, Timeout: timeout, Drain: 200 * time.Millisecond}
		r := run(t, o, 0, 500*time.Millisecond)
		if r.Errors[kind] == 0 || r.Done != 0 || len(r.Errors) > 2 {
			t.Errorf("%s: errors %v of %d", kind, r.Errors, r.Sent)
		}
		for deadline := time.Now().Add(ample); runtime.NumGoroutine() > before+4 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > before+4 { // connections of the server may be among them
			t.Errorf("%s: %d goroutines, %d before", kind, n, before)
		}
	}
	url := server(t, answering(say(okAnswer)))
	_, err := Prepare(t.Context(), Options{Targets: []string{strings.Replace(url, "http:", "https:", 1)}, Connections: 1})
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(fault.HintOf(err), "speaks TLS") {
		t.Errorf("a server without TLS: %v", err)
	}
	_, err = Prepare(t.Context(), Options{Targets: []string{echoHTTP1(t)}, TLS: TLSUnverified, Protocol: HTTP2,
		Connections: 1})
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(fault.HintOf(err), "HTTP/2") {
		t.Errorf("HTTP/2 of a server without: %v", err)
	}
}

// echoHTTP1 is a server with TLS that does not speak HTTP/2.
func echoHTTP1(t *testing.T) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}
