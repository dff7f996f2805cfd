package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// echo answers with what it was asked.
func echo(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-App", name)
		fmt.Fprintf(w, "%s %s %s\n", name, r.Method, r.RequestURI)
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestEnvoy: real Envoy is the server of our client, and the client of our server, with mTLS, by HTTP/1.1 and HTTP/2.
func TestEnvoy(t *testing.T) {
	r, app := newRoot(t), echo(t, "app")
	server, client := secrets(t, r, "server"), secrets(t, r, "client")
	inEnvoy, inProxy := free(t), free(t)
	outEnvoy, outEnvoy2, outProxy, outProxy2, outWrong := free(t), free(t), free(t), free(t), free(t)
	tcpIn, tcpOut := free(t), free(t)
	start(t, server, cluster("app", "", false, app), listener(inProxy, strict(chain(hcm(nil, to("app"))), "client")),
		listener(tcpIn, strict(chain(tcpProxy("app")), "client")))
	envoy(
		t,
		server,
		list{cluster("app", "", false, app)},
		list{listener(inEnvoy, strict(chain(hcm(nil, to("app"))), "client"))},
	)
	start(
		t,
		client,
		cluster("one", "server", false, inEnvoy),
		cluster("two", "server", true, inEnvoy),
		cluster("wrong", "other", false, inEnvoy),
		listener(outProxy, chain(hcm(nil, to("one")))),
		listener(outProxy2, chain(hcm(nil, to("two")))),
		listener(outWrong, chain(hcm(nil, to("wrong")))),
	)
	envoy(
		t,
		client,
		list{
			cluster("one", "server", false, inProxy),
			cluster("two", "server", true, inProxy),
			cluster("tcp", "server", false, tcpIn),
		},
		list{
			listener(outEnvoy, chain(hcm(nil, to("one")))),
			listener(outEnvoy2, chain(hcm(nil, to("two")))),
			listener(tcpOut, chain(tcpProxy("tcp"))),
		},
	)

	big := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(big, bytes.Repeat([]byte("0123456789abcdef"), 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, at string }{{"proxy to Envoy", outProxy}, {"proxy to Envoy, HTTP/2", outProxy2},
		{"Envoy to proxy", outEnvoy}, {"Envoy to proxy, HTTP/2", outEnvoy2}, {"Envoy to proxy, TCP", tcpOut}} {
		t.Run(c.name, func(t *testing.T) {
			for _, version := range []string{"--http1.1", "--http2-prior-knowledge"} {
				if c.at == tcpOut && version != "--http1.1" {
					continue // the application does not speak it
				}
				url := "http://" + c.at
				if got, want := curl(t, version, url+"/a/b?c=d&e"), "app GET /a/b?c=d&e\n"; got != want {
					t.Errorf("%s: %q, want %q", version, got, want)
				}
				out := curl(t, version, "-H", "Expect:", "--data-binary", "@"+big, url+"/post")
				if want := len("app POST /post\n") + 1<<20; len(out) != want ||
					!strings.HasPrefix(out, "app POST /post\n0123") {
					t.Errorf("%s: a body of 1 MiB comes back as %d bytes, want %d", version, len(out), want)
				}
				out = curl(t, version, "-H", "Transfer-Encoding: chunked", "-d", "some", url+"/chunks")
				if out != "app POST /chunks\nsome" {
					t.Errorf("%s: chunks come back as %q", version, out)
				}
				if out := curl(t, version, "-I", url+"/head"); !strings.Contains(strings.ToLower(out), "x-app: app") {
					t.Errorf("%s: HEAD: %q", version, out)
				}
			}
		})
	}
	if out := curl(t, "-w", "%{http_code}", "http://"+outWrong+"/"); out != "503" {
		t.Errorf("a server that is not who it should be: %q, want 503", out)
	}
}

// TestStrict: strangers and plain text are refused by all peers that we did not write, and get no byte of the
// application; whom rules deny neither, though its server speaks first.
func TestStrict(t *testing.T) {
	r, foreign := newRoot(t), newRoot(t)
	var reached atomic.Int64
	banner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer banner.Close()
	go func() {
		for {
			c, err := banner.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			fmt.Fprintln(c, "I speak first")
			time.AfterFunc(50*time.Millisecond, func() { c.Close() })
		}
	}()
	web, tcp, ruled := free(t), free(t), free(t)
	rule := object{
		"name": "rbac",
		"typed_config": object{"@type": types + "envoy.extensions.filters.network.rbac.v3.RBAC",
			"stat_prefix": "x", "rules": object{"policies": object{"p": object{"permissions": list{object{"any": true}},
				"principals": list{
					object{"authenticated": object{"principal_name": object{"exact": spiffe("client")}}},
				}}}}},
	}
	start(
		t,
		secrets(t, r, "server"),
		cluster("app", "", false, echo(t, "app")),
		cluster("banner", "", false, banner.Addr().String()),
		listener(web, strict(chain(hcm(nil, to("app"))), "client")),
		listener(tcp, strict(chain(tcpProxy("banner")), "client")),
		listener(ruled, strict(chain(rule, tcpProxy("banner")), "")),
	)

	write := func(chain, key string) (c, k string) {
		dir := t.TempDir()
		c, k = filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
		for name, text := range map[string]string{c: chain, k: key} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return c, k
	}
	good, goodKey := write(r.issue(t, "client"))
	other, otherKey := write(r.issue(t, "other"))
	bad, badKey := write(foreign.issue(t, "client"))
	const request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	ssl := func(at string, args ...string) string {
		out, _ := run(
			t,
			request,
			"openssl",
			append([]string{"s_client", "-quiet", "-ign_eof", "-connect", at}, args...)...)
		return out
	}
	for _, at := range []string{web, tcp, ruled} {
		want := "I speak first"
		if at == web {
			want = "app GET /"
		}
		if out := ssl(at, "-cert", good, "-key", goodKey); !strings.Contains(out, want) {
			t.Errorf("%s: who may call gets %q", at, out)
		}
		before := reached.Load()
		for name, args := range map[string][]string{"no certificate": nil,
			"a foreign certificate": {"-cert", bad, "-key", badKey},
			"another's certificate": {"-cert", other, "-key", otherKey}} {
			if out := ssl(at, args...); strings.Contains(out, "I speak") || strings.Contains(out, "app") ||
				strings.Contains(out, "HTTP/") {
				t.Errorf("%s with %s: %q", at, name, out)
			}
		}
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, request)
		if b, _ := io.ReadAll(c); bytes.Contains(b, []byte("app")) || bytes.Contains(b, []byte("speak")) {
			t.Errorf("%s in plain text: %q", at, b)
		}
		c.Close()
		if n := reached.Load(); n != before {
			t.Errorf("%s: %d of those who may not connect reached the server", at, n-before)
		}
	}
}

// TestPermissive: one address takes mTLS and plain text, and a client that waits for the server to speak.
func TestPermissive(t *testing.T) {
	r, at := newRoot(t), free(t)
	secure, open := strict(chain(hcm(nil, to("app"))), ""), chain(hcm(nil, to("app")))
	secure["filter_chain_match"] = object{"transport_protocol": "tls"}
	start(t, secrets(t, r, "server"), cluster("app", "", false, echo(t, "app")), listener(at, secure, open))
	if got := curl(t, "http://"+at+"/plain"); got != "app GET /plain\n" {
		t.Errorf("plain: %q", got)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
		Certificates: []tls.Certificate{r.pair(t, "client")}}}}
	resp, err := client.Get("https://" + at + "/tls")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); string(b) != "app GET /tls\n" {
		t.Errorf("TLS: %q", b)
	}
}

// TestRotation: certificates and then the roots are replaced under load; no request fails, no connection ends, and what
// the old root has signed is refused in the end, also by a session that is resumed.
func TestRotation(t *testing.T) {
	old, next := newRoot(t), newRoot(t)
	in, out := free(t), free(t)
	var ended, dials atomic.Int64
	app := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }),
	)
	app.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			ended.Add(1)
		}
	}
	app.Start()
	defer app.Close()
	server := start(t, secrets(t, old, "server"), cluster("app", "", false, app.Listener.Addr().String()),
		listener(in, strict(chain(hcm(nil, to("app"))), "client")))
	client := start(
		t,
		secrets(t, old, "client"),
		cluster("up", "server", false, in),
		listener(out, chain(hcm(nil, to("up")))),
	)
	sessions := tls.NewLRUClientSessionCache(8)
	strange := &tls.Config{
		InsecureSkipVerify: true,
		Certificates:       []tls.Certificate{old.pair(t, "client")},
		ClientSessionCache: sessions,
	}
	ask := func() error {
		c, err := tls.Dial("tcp", in, strange)
		if err != nil {
			return err
		}
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		_, err = http.ReadResponse(bufio.NewReader(c), nil)
		return err
	}
	for range 2 { // the second time by the session
		if err := ask(); err != nil {
			t.Fatal(err)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	var asked, failed atomic.Int64
	for range 4 {
		done.Go(func() {
			c := &http.Client{
				Transport: &http.Transport{
					// A request that begins before the connection of the last is back among the idle ones would dial.
					MaxConnsPerHost: 1,
					DialContext: func(ctx context.Context, network, at string) (net.Conn, error) {
						dials.Add(1)
						return new(net.Dialer).DialContext(ctx, network, at)
					},
				},
			}
			for ctx.Err() == nil {
				resp, err := c.Get("http://" + out + "/")
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				if asked.Add(1); err != nil || resp.StatusCode != 200 {
					failed.Add(1)
				}
			}
		})
	}
	until := func(n int64) {
		for target := asked.Load() + n; asked.Load() < target; {
			time.Sleep(time.Millisecond)
		}
	}
	until(100)
	was := ended.Load() // those that asked by a session
	both := *old
	both.pem += next.pem
	step := func(rs, rc *root, roots string) {
		for _, p := range []struct {
			*running
			account string
			r       *root
		}{{server, "server", rs}, {client, "client", rc}} {
			list := secrets(t, p.r, p.account)
			list[1].(object)["validation_context"] = object{"trusted_ca": object{"inline_string": roots}}
			p.set(list)
		}
		until(100)
	}
	step(old, old, old.pem)    // new certificates
	step(old, old, both.pem)   // both roots are trusted
	step(next, next, both.pem) // certificates by the new root
	step(next, next, next.pem) // only the new root is trusted
	server.set(
		cluster("app", "", false, app.Listener.Addr().String()),
		listener(in, strict(chain(hcm(nil, to("app"))), "client")),
	)
	until(100)                                               // the same listener once more, with its names
	client.set(listener(free(t), chain(hcm(nil, to("up"))))) // what has nothing to do with it
	until(100)
	if n := ended.Load(); n > was {
		t.Errorf("%d connections to the application ended", n-was)
	}
	if n := dials.Load(); n > 4 {
		t.Errorf("4 clients made %d connections", n)
	}
	stop()
	done.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	if err := ask(); err == nil {
		t.Error("a certificate of the old root is still taken")
	}
}
