package proxyconfig

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// strictMesh is a mesh that accepts mTLS only. 127.9.9.1 is the caller's side, .2 and .4 are the serving proxies, .3
// and .5 their applications, .6 the ingress, .7 is outside the mesh.
const strictMesh = `
mtls: strict
discovery: policy
services:
  - name: web
    address: 127.9.9.1:80
    protocol: http
    identity: web
    endpoints: [{address: "127.9.9.2:80"}]
    routes:
      - {name: exact, match: {path: /exact, method: GET}}
      - {name: secret, match: {prefix: /color/secret}, to: {blue: 1}}
      - {name: color, match: {prefix: /color, headers: {x-color: blue}}, to: {blue: 1}}
      - {name: present, match: {prefix: /color, headers: {x-any: "*"}}, to: {blue: 1}}
      - {name: split, match: {prefix: /split}, to: {web: 75, blue: 25}}
      - {name: digits, match: {regex: "/n/[0-9]+"}, to: {blue: 1}}
      - {name: flaky, match: {path: /flaky}, retries: {attempts: 3, on: [5xx]}}
      - {name: coded, match: {path: /coded}, retries: {attempts: 3, on: ["418", reset]}}
      - {name: slow, match: {path: /slow}, timeout: 100ms}
      - {name: admin, match: {prefix: /admin}}
    access:
      - {from: [frontend], routes: [exact, color, present, split, digits, flaky, coded, slow]}
      - {from: [ops/admin]}
  - name: blue
    protocol: http
    identity: blue
    endpoints: [{address: "127.9.9.4:80"}]
  - name: h2
    address: 127.9.9.1:81
    protocol: http2
    endpoints: [{address: "127.9.9.2:81"}]
    access: [{from: ["*"]}]
  - name: rpc
    address: 127.9.9.1:82
    protocol: grpc
    endpoints: [{address: "127.9.9.2:82"}]
    routes: [{name: check, match: {path: /grpc.health.v1.Health/Check}}]
    access: [{from: [frontend], routes: [check]}]
  - name: greet
    address: 127.9.9.1:83
    endpoints: [{address: "127.9.9.2:83"}]
    access: [{from: [frontend, ops/admin]}]
  - name: closed
    endpoints: [{address: "127.9.9.2:84"}]
  - name: hidden
    address: 127.9.9.1:85
    endpoints: [{address: "127.9.9.2:83"}]
    access: [{from: [ops/admin]}]
  - name: echo
    address: 127.9.9.1:86
    protocol: udp
    endpoints: [{address: "127.9.9.7:86"}]
    access: [{from: [frontend]}]
  - name: local
    address: 127.9.9.1:87
    protocol: http
    endpoints: [{address: "localhost:19999"}]
    access: [{from: [frontend]}]
proxies:
  - {id: frontend-1, identity: frontend}
  - id: web-1
    identity: web
    inbound:
      web: {listen: "127.9.9.2:80", to: "127.9.9.3:80"}
      h2: {listen: "127.9.9.2:81", to: "127.9.9.3:81"}
      rpc: {listen: "127.9.9.2:82", to: "127.9.9.3:82"}
      greet: {listen: "127.9.9.2:83", to: "127.9.9.3:83"}
      closed: {listen: "127.9.9.2:84", to: "127.9.9.3:83"}
  - id: blue-1
    identity: blue
    inbound: {blue: {listen: "127.9.9.4:80", to: "127.9.9.5:80"}}
ingress:
  - {service: web, listen: "127.9.9.6:80", proxy: web-1}
  - {service: h2, listen: "127.9.9.6:81", proxy: web-1, tls: true}
  - {service: h2, listen: "127.9.9.6:82", proxy: frontend-1}
`

// permissiveMesh accepts TLS and plain text.
const permissiveMesh = `
mtls: permissive
services:
  - {name: web, protocol: http, endpoints: [{address: "127.9.9.2:90"}]}
  - {name: guarded, protocol: http, endpoints: [{address: "127.9.9.2:91"}], access: [{from: [frontend]}]}
  - {name: greet, endpoints: [{address: "127.9.9.2:92"}]}
  - {name: closed, endpoints: [{address: "127.9.9.2:93"}], access: [{from: [frontend]}]}
  - {name: echo, protocol: udp, endpoints: [{address: "127.9.9.2:94"}]}
proxies:
  - id: server
    identity: web
    outbound: {echo: "127.9.9.1:94"}
    inbound:
      web: {listen: "127.9.9.2:90", to: "127.9.9.3:80"}
      guarded: {listen: "127.9.9.2:91", to: "127.9.9.3:80"}
      greet: {listen: "127.9.9.2:92", to: "127.9.9.3:83"}
      closed: {listen: "127.9.9.2:93", to: "127.9.9.3:83"}
      echo: {listen: "127.9.9.2:94", to: "127.9.9.7:86"}
`

// sharedMesh is the same for all nodes.
const sharedMesh = `
services:
  - name: greet
    address: 127.9.9.8:80
    endpoints: [{address: "127.9.9.3:83"}]
    allow: [{from: [127.0.0.0/8], ports: [80]}, {from: [1.2.3.4]}]
    deny: [{from: [127.9.9.66, 127.9.9.68/30]}]
  - {name: only, address: "127.9.9.8:81", endpoints: [{address: "127.9.9.3:83"}], allow: [{from: [127.9.9.65]}]}
  - name: echo
    address: 127.9.9.8:82
    protocol: udp
    endpoints: [{address: "127.9.9.7:86"}]
    deny: [{from: [127.9.9.66]}]
  - {name: parts, address: "127.9.9.8:83", split: {greet: 60, other: 40}}
  - {name: other, endpoints: [{address: "127.9.9.3:84"}]}
  - {name: datagrams, address: "127.9.9.8:84", protocol: udp, split: {left: 30, right: 70}}
  - {name: left, endpoints: [{address: "127.9.9.7:86"}]}
  - {name: right, endpoints: [{address: "127.9.9.7:87"}]}
  - {name: web, address: "127.9.9.8:85", protocol: http, endpoints: [{address: "127.9.9.3:80"}]}
`

func TestStrict(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	port := bothLoopbacks(t)
	mesh := compiled(t, strings.ReplaceAll(strictMesh, "19999", port))
	startBackends(t)
	p := startPlane(t)
	for _, id := range mesh.Proxies() {
		p.tell(t, mesh, id, ca.secrets(t, mesh.Identity(id))...)
	}
	startEnvoy(t, p, "web-1", "GRPC")
	startEnvoy(t, p, "blue-1", "GRPC")
	startEnvoy(t, p, "frontend-1", "DELTA_GRPC")
	plain := &http.Client{Transport: &http.Transport{}}

	t.Run("routes", func(t *testing.T) {
		for _, c := range []struct {
			method, path, header, want string
		}{
			{"GET", "/exact?query=1", "", "200 web /exact?query=1"},
			{"POST", "/exact", "", "403"},
			{"GET", "/exact/more", "", "403"},
			{"GET", "/color", "x-color: blue", "200 blue /color"},
			{"GET", "/color/more", "x-color: blue", "200 blue /color/more"},
			{"GET", "/color", "x-color: red", "403"},
			{"GET", "/color", "x-any: thing", "200 blue /color"},
			{"GET", "/color/secret", "x-color: blue", "403"},
			{"GET", "/color/../color/secret", "x-color: blue", "403"},
			{"GET", "/color/%2e%2e/color/secret", "x-color: blue", "403"},
			{"GET", "//color//secret", "x-color: blue", "403"},
			{"GET", "/color%2fsecret", "x-color: blue", "400"},
			{"GET", "/n/123", "", "200 blue /n/123"},
			{"GET", "/n/x", "", "403"},
			{"GET", "/admin/x", "", "403"},
			{"GET", "/other", "", "403"},
			{"GET", "/flaky", "", "200 web /flaky"},
			{"GET", "/coded", "", "200 web /coded"},
			{"GET", "/slow", "", "504"},
		} {
			if got := ask(t, plain, c.method, "http://"+here("127.9.9.1:80")+c.path, c.header); !begins(got, c.want) {
				t.Errorf("%s %s %s: got %q, want %q", c.method, c.path, c.header, got, c.want)
			}
		}
	})
	t.Run("split", func(t *testing.T) {
		const n = 400
		blue := 0
		for range n {
			switch got := ask(t, plain, "GET", "http://"+here("127.9.9.1:80")+"/split", ""); {
			case begins(got, "200 blue"):
				blue++
			case !begins(got, "200 web"):
				t.Fatal(got)
			}
		}
		within5Sigma(t, "blue", blue, n, 0.25)
	})
	t.Run("identities", func(t *testing.T) {
		const mesh, td = "spiffe://mesh.local/ns/default/sa/", "spiffe://mesh.local/ns/ops/sa/admin"
		for _, c := range []struct {
			what string
			tls  *tls.Config
			path string
			want string // "": the handshake fails
		}{
			{"frontend", ca.client(t, mesh+"frontend"), "/exact", "200 web"},
			{"frontend without right", ca.client(t, mesh+"frontend"), "/admin", "403"},
			{"all rights", ca.client(t, td), "/admin", "200 web"},
			{"no right at all", ca.client(t, mesh+"batch"), "/exact", "403"},
			{"the service itself", ca.client(t, mesh+"web"), "/exact", "403"},
			{"another trust domain", ca.client(t, "spiffe://other.local/ns/default/sa/frontend"), "/exact", ""},
			{"a foreign root", foreign.client(t, mesh+"frontend"), "/exact", ""},
			{"no certificate", ca.client(t, ""), "/exact", ""},
		} {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls}}
			got := ask(t, client, "GET", "https://"+here("127.9.9.2:80")+c.path, "")
			if c.want == "" && !begins(got, "failed") || !begins(got, c.want) {
				t.Errorf("%s: got %q, want %q", c.what, got, c.want)
			}
			client.CloseIdleConnections()
		}
		if got := ask(t, plain, "GET", "http://"+here("127.9.9.2:80")+"/exact", ""); !begins(got, "failed") {
			t.Errorf("plain text: %q", got)
		}
		// The access lists of the services that lead to a service also decide who may call it directly.
		direct := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.client(t, mesh+"frontend")}}
		for path, want := range map[string]string{"/n/5": "200 blue", "/exact": "403", "/color/secret": "403"} {
			if got := ask(t, direct, "GET", "https://"+here("127.9.9.4:80")+path, ""); !begins(got, want) {
				t.Errorf("blue%s: got %q, want %q", path, got, want)
			}
		}
		direct.CloseIdleConnections()
	})
	t.Run("server first", func(t *testing.T) {
		if got := greeting(t, "", here("127.9.9.1:83"), nil); got != "greetings 1\n" {
			t.Errorf("through both proxies: %q", got)
		}
		const mesh = "spiffe://mesh.local/ns/default/sa/"
		if got := greeting(t, "", here("127.9.9.2:83"), ca.client(t, mesh+"frontend")); got != "greetings 1\n" {
			t.Errorf("by certificate: %q", got)
		}
		before := greeted.Load()
		for what, c := range map[string]*tls.Config{
			"batch": ca.client(t, mesh+"batch"), "a foreign root": foreign.client(t, mesh+"frontend"),
			"another trust domain": ca.client(t, "spiffe://other.local/ns/default/sa/frontend"),
			"no certificate":       ca.client(t, ""),
		} {
			for range 8 {
				if got := greeting(t, "", here("127.9.9.2:83"), c); got != "" {
					t.Errorf("%s gets %q", what, got)
				}
			}
		}
		for range 8 {
			// TLS answers with an alert that this is not TLS.
			const alert = "\x15\x03\x01\x00\x02\x02F"
			if got := heard(t, "", here("127.9.9.2:83"), nil, "hello\n", 20*time.Second); got != "" && got != alert {
				t.Errorf("plain text gets %q", got)
			}
			if got := greeting(t, "", here("127.9.9.2:84"), ca.client(t, mesh+"frontend")); got != "" {
				t.Errorf("of a service that nobody may call: %q", got)
			}
		}
		if got := heard(t, "", here("127.9.9.2:83"), nil, "", time.Second/2); got != "" {
			t.Errorf("who says nothing gets %q", got)
		}
		if now := greeted.Load(); now != before {
			t.Errorf("%d refused callers reached the application", now-before)
		}
		if c, err := net.Dial("tcp", here("127.9.9.1:85")); err == nil {
			c.Close()
			t.Error("a service that frontend may not call has a listener at its proxy")
		}
	})
	t.Run("http2", func(t *testing.T) {
		if got := ask(t, plain, "GET", "http://"+here("127.9.9.1:81")+"/x", ""); got != "200 web /x HTTP/2.0" {
			t.Error(got)
		}
	})
	t.Run("grpc", func(t *testing.T) {
		c, err := grpc.NewClient(here("127.9.9.1:82"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r, err := healthv1.NewHealthClient(c).Check(context.Background(), &healthv1.HealthCheckRequest{})
		if err != nil || r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Error(r, err)
		}
		_, err = healthv1.NewHealthClient(c).List(context.Background(), &healthv1.HealthListRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a method without right: %v", err)
		}
	})
	t.Run("udp", func(t *testing.T) {
		if got := echoed(t, "", here("127.9.9.1:86"), 50); got != "echo" {
			t.Error(got)
		}
	})
	t.Run("localhost", func(t *testing.T) {
		seen := map[string]int{}
		for range 20 {
			seen[ask(t, plain, "GET", "http://"+here("127.9.9.1:87")+"/", "")]++
		}
		if seen["200 [::1] / HTTP/1.1"] == 0 || seen["200 127.0.0.1 / HTTP/1.1"] == 0 || len(seen) != 2 {
			t.Errorf("localhost is served by %v", seen)
		}
	})
	t.Run("ingress", func(t *testing.T) {
		if got := ask(t, plain, "GET", "http://"+here("127.9.9.6:80")+"/admin", ""); !begins(got, "200 web") {
			t.Errorf("in plain text: %q", got)
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.client(t, ""), ForceAttemptHTTP2: true}}
		if got := ask(t, client, "GET", "https://"+here("127.9.9.6:81")+"/x", ""); got != "200 web /x HTTP/2.0" {
			t.Errorf("in TLS: %q", got)
		}
		client.CloseIdleConnections()
		if got := ask(t, plain, "GET", "http://"+here("127.9.9.6:82")+"/x", ""); got != "200 web /x HTTP/2.0" {
			t.Errorf("by a proxy that calls the service: %q", got)
		}
	})
	plain.CloseIdleConnections()
}

func TestPermissive(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	mesh := compiled(t, permissiveMesh)
	startBackends(t)
	p := startPlane(t)
	p.tell(t, mesh, "server", ca.secrets(t, mesh.Identity("server"))...)
	startEnvoy(t, p, "server", "DELTA_GRPC")
	const frontend, batch = "spiffe://mesh.local/ns/default/sa/frontend", "spiffe://mesh.local/ns/default/sa/batch"
	for _, c := range []struct {
		what, port string
		tls        *tls.Config
		want       string
	}{
		{"plain text", "90", nil, "200 web"},
		{"TLS", "90", ca.client(t, batch), "200 web"},
		{"a foreign root", "90", foreign.client(t, batch), "failed"},
		{"plain text, guarded", "91", nil, "403"},
		{"TLS, guarded", "91", ca.client(t, frontend), "200 web"},
		{"without right, guarded", "91", ca.client(t, batch), "403"},
	} {
		client, scheme := &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls}}, "https://"
		if c.tls == nil {
			scheme = "http://"
		}
		if got := ask(t, client, "GET", scheme+here("127.9.9.2:"+c.port)+"/", ""); !begins(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
		client.CloseIdleConnections()
	}
	for _, c := range []struct {
		what, port string
		tls        *tls.Config
		want       string
	}{
		{"plain text", "92", nil, "greetings 1\n"},
		{"TLS", "92", ca.client(t, batch), "greetings 1\n"},
		{"plain text, closed", "93", nil, ""},
		{"TLS, closed", "93", ca.client(t, batch), ""},
		{"TLS, open", "93", ca.client(t, frontend), "greetings 1\n"},
	} {
		if got := greeting(t, "", here("127.9.9.2:"+c.port), c.tls); got != c.want {
			t.Errorf("server first, %s: got %q, want %q", c.what, got, c.want)
		}
	}
	if got := echoed(t, "", here("127.9.9.1:94"), 50); got != "echo" {
		t.Errorf("udp through both sides: %q", got)
	}
}

func TestSharedByAll(t *testing.T) {
	mesh := compiled(t, sharedMesh)
	startBackends(t)
	p := startPlane(t)
	p.tell(t, mesh, "anybody")
	startEnvoy(t, p, "anybody", "GRPC")
	before := greeted.Load()
	for _, c := range []struct{ from, to, want string }{
		{"127.9.9.66", "127.9.9.8:80", ""},
		{"127.9.9.71", "127.9.9.8:80", ""},
		{"127.9.9.66", "127.9.9.8:81", ""},
		{"127.9.9.65", "127.9.9.8:80", "greetings 1\n"},
		{"127.9.9.72", "127.9.9.8:80", "greetings 1\n"},
		{"127.9.9.65", "127.9.9.8:81", "greetings 1\n"},
	} {
		for range 8 {
			if got := greeting(t, here(c.from), here(c.to), nil); got != c.want {
				t.Errorf("%s to %s: got %q, want %q", c.from, c.to, got, c.want)
			}
		}
	}
	if n := greeted.Load() - before; n != 24 {
		t.Errorf("%d connections reached the application, want 24", n)
	}
	if got := echoed(t, here("127.9.9.65"), here("127.9.9.8:82"), 50); got != "echo" {
		t.Errorf("udp: %q", got)
	}
	if got := echoed(t, here("127.9.9.66"), here("127.9.9.8:82"), 3); got != "" {
		t.Errorf("udp from a source that is denied: %q", got)
	}
	const n = 200
	first, left := 0, 0
	for range n {
		switch got := greeting(t, "", here("127.9.9.8:83"), nil); got {
		case "greetings 1\n":
			first++
		case "greetings 2\n":
		default:
			t.Fatalf("got %q", got)
		}
		switch got := echoed(t, "", here("127.9.9.8:84"), 50); got {
		case "echo":
			left++
		case "other":
		default:
			t.Fatalf("got %q", got)
		}
	}
	within5Sigma(t, "first", first, n, 0.6)
	within5Sigma(t, "left", left, n, 0.3)
	client := &http.Client{Transport: &http.Transport{}}
	if got := ask(t, client, "GET", "http://"+here("127.9.9.8:85")+"/", ""); !begins(got, "200 web") {
		t.Error(got)
	}
	client.CloseIdleConnections()
}

func compiled(t *testing.T, text string) *Mesh {
	t.Helper()
	m, err := Parse("mesh.yaml", []byte(here(text)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func begins(text, with string) bool { return strings.HasPrefix(text, with) }

func within5Sigma(t *testing.T, what string, k, n int, p float64) {
	t.Helper()
	mean, sigma := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
	if math.Abs(float64(k)-mean) > 5*sigma {
		t.Errorf("%s: %d of %d, want %.0f within 5 standard deviations of %.1f", what, k, n, mean, sigma)
	}
}

// ask makes a request, and returns status and answer; "failed" and the error if there is none.
func ask(t *testing.T, c *http.Client, method, url, header string) string {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if name, value, ok := strings.Cut(header, ": "); ok {
		r.Header.Set(name, value)
	}
	a, err := c.Do(r)
	if err != nil {
		return "failed: " + err.Error()
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		return "failed: " + err.Error()
	}
	return fmt.Sprintf("%d %s", a.StatusCode, b)
}

// greeting returns what a server sends first. It connects from an address, if one is given.
func greeting(t *testing.T, from, to string, c *tls.Config) string {
	t.Helper()
	return heard(t, from, to, c, "", 20*time.Second)
}

// heard sends the text says, unless it is empty, on a new connection, and returns what it receives there, up to the end
// of a line.
func heard(t *testing.T, from, to string, c *tls.Config, says string, patience time.Duration) string {
	t.Helper()
	d := net.Dialer{}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := d.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if c != nil {
		conn = tls.Client(conn, c)
	}
	io.WriteString(conn, says)
	conn.SetReadDeadline(time.Now().Add(patience))
	text, err := bufio.NewReader(conn).ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) && patience > time.Second {
		t.Error("the connection stays open")
	}
	return text
}

// echoed sends a datagram up to the given number of times, 100 ms apart, and returns the first answer, or "" if there
// is none.
func echoed(t *testing.T, from, to string, times int) string {
	t.Helper()
	d := net.Dialer{}
	if from != "" {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
	}
	conn, err := d.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := make([]byte, 100)
	for range times {
		conn.Write([]byte("hello"))
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // not a deadline: the interval of the tries
		if n, err := conn.Read(b); err == nil {
			return string(b[:n])
		}
	}
	return ""
}

// greeted counts the connections to the server that sends first.
var greeted atomic.Int64

// startBackends runs the applications behind the proxies until the test ends.
func startBackends(t *testing.T) {
	t.Helper()
	serveHTTP(t, here("127.9.9.3:80"), "web", false)
	serveHTTP(t, here("127.9.9.3:81"), "web", true)
	serveHTTP(t, here("127.9.9.5:80"), "blue", false)
	g := grpc.NewServer()
	healthv1.RegisterHealthServer(g, health.NewServer())
	serve(t, here("127.9.9.3:82"), g.Serve, g.Stop)
	for port, text := range map[string]string{"83": "greetings 1\n", "84": "greetings 2\n"} {
		serveFirst(t, here("127.9.9.3:"+port), text)
	}
	for port, text := range map[string]string{"86": "echo", "87": "other"} {
		serveDatagrams(t, here("127.9.9.7:"+port), text)
	}
}

func serve(t *testing.T, address string, run func(net.Listener) error, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() { run(l) })
	t.Cleanup(func() {
		stop()
		l.Close()
		wait.Wait()
	})
}

// serveHTTP answers with its name, the request's target and the protocol.
func serveHTTP(t *testing.T, address, name string, only2 bool) {
	t.Helper()
	var tries sync.Map
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counter, _ := tries.LoadOrStore(r.URL.Path, new(atomic.Int64))
		n := counter.(*atomic.Int64).Add(1)
		switch {
		case r.URL.Path == "/flaky" && n < 4:
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case r.URL.Path == "/coded" && n < 4:
			w.WriteHeader(http.StatusTeapot)
			return
		case r.URL.Path == "/slow":
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, "%s %s %s", name, r.RequestURI, r.Proto)
	}), Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(!only2)
	s.Protocols.SetUnencryptedHTTP2(only2)
	serve(t, address, s.Serve, func() { s.Close() })
}

// serveFirst sends text on each connection, and closes it.
func serveFirst(t *testing.T, address, text string) {
	t.Helper()
	serve(t, address, func(l net.Listener) error {
		for {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			greeted.Add(1)
			io.WriteString(c, text)
			c.Close()
		}
	}, func() {})
}

func serveDatagrams(t *testing.T, address, text string) {
	t.Helper()
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		b := make([]byte, 100)
		for {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			c.WriteTo([]byte(text), from)
		}
	})
	t.Cleanup(func() {
		c.Close()
		wait.Wait()
	})
}

// bothLoopbacks serves at the same port of 127.0.0.1 and ::1.
func bothLoopbacks(t *testing.T) (port string) {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		six, err := net.Listen("tcp", "[::1]:"+port)
		l.Close()
		if err == nil {
			six.Close()
			serveHTTP(t, "127.0.0.1:"+port, "127.0.0.1", false)
			serveHTTP(t, "[::1]:"+port, "[::1]", false)
			return port
		}
	}
	t.Fatal("there is no port that is free at both loopback addresses")
	return ""
}
