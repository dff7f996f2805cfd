package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestRoutes: what goes where, by path, method and header; who may not call is told 403, and rules see the path that
// the application will.
func TestRoutes(t *testing.T) {
	at := free(t)
	header := func(name, value string) object { return object{"name": name, "string_match": object{"exact": value}} }
	deny := object{
		"name": "envoy.filters.http.rbac",
		"typed_config": object{"@type": types + "envoy.extensions.filters.http.rbac.v3.RBAC",
			"rules": object{"action": "DENY", "policies": object{"p": object{"principals": list{object{"any": true}},
				"permissions": list{object{"url_path": object{"path": object{"prefix": "/secret"}}}}}}}},
	}
	open := object{
		"envoy.filters.http.rbac": object{"@type": types + "envoy.extensions.filters.http.rbac.v3.RBACPerRoute"},
	}
	manager := hcm(
		list{deny},
		object{"match": object{"path": "/exact"}, "route": object{"cluster": "a"}},
		object{
			"match": object{"prefix": "/methods", "headers": list{header(":method", "POST")}},
			"route": object{"cluster": "a"},
		},
		object{
			"match": object{"prefix": "/", "headers": list{header("x-version", "b")}},
			"route": object{"cluster": "b"},
		},
		object{"match": object{"safe_regex": object{"regex": "/re/[0-9]+"}}, "route": object{"cluster": "a"}},
		object{
			"match":                   object{"prefix": "/secret/open"},
			"route":                   object{"cluster": "a"},
			"typed_per_filter_config": open,
		},
		object{"match": object{"prefix": "/strip/"}, "route": object{"cluster": "a", "prefix_rewrite": "/"}},
		object{
			"match":           object{"prefix": "/direct"},
			"direct_response": object{"status": 418, "body": object{"inline_string": "tea"}},
		},
		object{"match": object{"prefix": "/none"}, "route": object{"cluster": "nobody"}},
		object{"match": object{"prefix": "/dead"}, "route": object{"cluster": "dead"}},
		object{"match": object{"prefix": "/split"}, "route": object{"weighted_clusters": object{"clusters": list{
			object{"name": "a", "weight": 3}, object{"name": "b", "weight": 1}}}}},
		object{"match": object{"prefix": "/b"}, "route": object{"cluster": "b"}},
		object{"match": object{"prefix": "/a"}, "route": object{"cluster": "a"}},
	)
	manager["typed_config"].(object)["path_with_escaped_slashes_action"] = "REJECT_REQUEST"
	start(
		t,
		cluster("a", "", false, echo(t, "a")),
		cluster("b", "", false, echo(t, "b")),
		cluster("dead", "", false, free(t)),
		listener(at, chain(manager)),
	)
	var args, want, paths []string
	for _, c := range []struct{ want, path, options string }{
		{"a GET /exact\n200", "/exact", ""},
		{"404", "/exactly", ""},
		{"404", "/methods", ""},
		{"a POST /methods/x\n200", "/methods/x", "-X POST"},
		{"b GET /whatever\n200", "/whatever", "-H X-Version:b"},
		{"a GET /re/42\n200", "/re/42", ""},
		{"404", "/re/4x", ""},
		{"a GET /x?q=1;2\n200", "/strip/x?q=1;2", ""},
		{"tea418", "/direct", ""},
		{"503", "/none", ""},
		{"503", "/dead", ""},
		{"RBAC: access denied403", "/secret", ""},
		{"a GET /secret/open\n200", "/secret/open", ""},
		{"RBAC: access denied403", "/a/../secret", ""},
		{"RBAC: access denied403", "/a/%2e%2E/secret", ""},
		{"RBAC: access denied403", "/%73ecret", ""},
		{"RBAC: access denied403", "//secret", ""},
		{"400", "/a%2f..%2fsecret", ""},
		{"400", "/../secret", ""},
		{"a GET /a/b\n200", "/a//./b", ""},
	} {
		args = append(args, "--next", "-sS", "--path-as-is", "-w", "%{http_code}\n--\n", "--http1.1")
		args = append(append(args, strings.Fields(c.options)...), "http://"+at+c.path)
		want = append(want, c.path+": "+c.want)
		paths = append(paths, c.path)
	}
	got := strings.Split(curl(t, args[1:]...), "\n--\n")
	for i, w := range want {
		if g := paths[i] + ": " + got[i]; g != w {
			t.Errorf("%q, want %q", g, w)
		}
	}
	for path, want := range map[string]string{"/a/../secret": "RBAC: access denied403",
		"/a%2f..%2fsecret": "400", "/b": "b GET /b\n200"} {
		if got := curl(t, "--http2-prior-knowledge", "--path-as-is",
			"-w", "%{http_code}", "http://"+at+path); got != want {
			t.Errorf("by HTTP/2: %s: %q, want %q", path, got, want)
		}
	}
	count := map[string]int{}
	const n = 400
	for range n {
		resp, err := http.Get("http://" + at + "/split")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		count[resp.Header.Get("X-App")]++
	}
	if got := count["a"]; got < n*3/4-60 || got > n*3/4+60 { // 7 standard deviations
		t.Errorf("of %d requests with weight 3 of 4, %d", n, got)
	}
}

// flaky answers a request with a body after a while, or fails the first tries, as its path says.
func flaky(t *testing.T, tries *atomic.Int64) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := tries.Add(1)
		switch {
		case strings.HasPrefix(r.URL.Path, "/slow"):
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Second):
			}
		case n%3 != 0 && strings.HasPrefix(r.URL.Path, "/status"):
			w.WriteHeader(http.StatusBadGateway)
		case n%3 != 0 && strings.HasPrefix(r.URL.Path, "/reset"):
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				c.Close()
			}
		default:
			io.WriteString(w, "ok")
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestRetries: as often as the route says, never with a body, and within its time.
func TestRetries(t *testing.T) {
	at := free(t)
	var tries atomic.Int64
	retry := func(prefix, on string) object {
		return object{"match": object{"prefix": prefix}, "route": object{"cluster": "flaky", "timeout": "5s",
			"retry_policy": object{"retry_on": on, "num_retries": 2}}}
	}
	start(t, cluster("flaky", "", false, flaky(t, &tries)), listener(at, chain(hcm(nil,
		object{"match": object{"prefix": "/slow"}, "route": object{"cluster": "flaky", "timeout": "0.3s"}},
		retry("/status", "5xx"), retry("/reset", "reset"), to("flaky")))))
	for _, c := range []struct {
		path, options, want string
		tries               int64
	}{
		{"/status", "", "ok200", 3},
		{"/status", "-d x", "502", 1},
		{"/reset", "", "ok200", 3},
		{"/reset", "-d x", "503", 1},
		{"/slow", "", "504", 1},
		{"/plain", "", "ok200", 1},
	} {
		tries.Store(0)
		args := append([]string{"-w", "%{http_code}", "http://" + at + c.path}, strings.Fields(c.options)...)
		if got := curl(t, args...); got != c.want || tries.Load() != c.tries {
			t.Errorf(
				"%s %s: %q after %d tries, want %q after %d",
				c.path,
				c.options,
				got,
				tries.Load(),
				c.want,
				c.tries,
			)
		}
	}
}

// raw sends bytes as they are, and gives all that comes back until the proxy closes.
func raw(t *testing.T, at, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(c)
	return string(b)
}

// TestSmuggling: what two parsers may read in two ways reaches the application as one request or not at all.
func TestSmuggling(t *testing.T) {
	at, app := free(t), make(chan string, 64)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // an application that tells what it got, byte for byte
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				var got strings.Builder
				in := bufio.NewReader(io.TeeReader(c, &got))
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						break
					}
					io.Copy(io.Discard, r.Body)
					_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // the rest would be here by now
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
				app <- got.String()
			}()
		}
	}()
	start(t, cluster("app", "", false, l.Addr().String()), listener(at, chain(hcm(nil, to("app")))))
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, text := range map[string]string{
		"content-length and chunked": "POST / HTTP/1.1\r\nHost: x\r\n" +
			"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths": "POST / HTTP/1.1\r\nHost: x\r\n" +
			"Content-Length: 0\r\nContent-Length: 38\r\n\r\n" + smuggled,
		"a signed length":             "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +0\r\n\r\n",
		"an unknown encoding":         "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"a blank before the colon":    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"a bare carriage return":      "GET / HTTP/1.1\r\nHost: x\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n",
		"a folded encoding":           "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"two hosts":                   "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"blanks in the path":          "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
		"chunks of a negative length": "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
	} {
		answer := raw(t, at, strings.Replace(text, "\r\n", "\r\nConnection: close\r\n", 1))
		if strings.Count(answer, "HTTP/1.1") != 1 {
			t.Errorf("%s: not one answer: %q", name, answer)
		}
	}
	// HTTP/2 has no lines: what would be two in HTTP/1.1 must not become two.
	for _, path := range []string{"/a b", "/x HTTP/1.1\tHost:y", "/?a b", "/a\x7f"} {
		if out, _ := run(t, "", "curl", "-sS", "--max-time", "5", "--http2-prior-knowledge", "-w", "%{http_code}",
			"--request-target", path, "http://"+at+"/"); !strings.HasSuffix(out, "400") &&
			!strings.Contains(out, "curl:") {
			t.Errorf("path %q: %q", path, out)
		}
	}
	for _, method := range []string{"GET /smuggled HTTP/1.1", "GET /smuggled?", "GET\t", "GET\r\nX: y", "GE,T", "G\x7f", "\xff"} {
		if got := byHTTP2(t, at, method, "web"); got == "200" {
			t.Errorf("the method %q gets %s", method, got)
		}
	}
	for _, host := range []string{"smuggled/ web", "smuggled, web", "smuggled,web", "smuggled/web", "smuggled\tweb",
		"smuggled web", "web\r\nX: smuggled", "smuggled@web", "smuggled\\web", "smuggled#web", "smuggled?web", "\xff"} {
		if got := byHTTP2(t, at, "GET", host); got == "200" {
			t.Errorf("the host %q gets %s", host, got)
		}
	}
	for _, host := range []string{"http://smuggled,web/", "http://smuggled<web/", `http://smuggled"web/`} {
		if answer := raw(t, at, "GET "+host+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.Contains(answer, " 400 ") {
			t.Errorf("the target %s gets %q", host, answer)
		}
	}
	for _, good := range [][2]string{{"GET", "web"}, {"GET", "web.example:80"}, {"M-SEARCH", "[::1]:80"}, {"GET", "127.0.0.1"}} {
		if got := byHTTP2(t, at, good[0], good[1]); got != "200" {
			t.Errorf("the method %s of %s gets %s", good[0], good[1], got)
		}
	}
	time.Sleep(400 * time.Millisecond)
	for len(app) > 0 {
		got := <-app
		if strings.Contains(got, "smuggled") ||
			strings.Count(got, "HTTP/1.1\r\n") > strings.Count(got, "\r\nHost: ") ||
			strings.Contains(got, "Content-Length") && strings.Contains(got, "Transfer-Encoding") {
			t.Errorf("the application got %q", got)
		}
	}
}

// byHTTP2 makes a request by hand, for no client sends such ones, and gives its status; an error where it has none.
//
// Fields, of names and values in turn, are those of a request whose body does not come.
func byHTTP2(t *testing.T, at, method, host string, fields ...string) string {
	t.Helper()
	frames := openHTTP2(t, at)
	if len(fields) == 0 {
		writeHead(t, frames, 1, true, ":method", method, ":scheme", "http", ":authority", host, ":path", "/public")
	} else {
		writeHead(t, frames, 1, false, append([]string{":method", method, ":scheme", "http", ":authority", host}, fields...)...)
	}
	for {
		frame, err := frames.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return frame.ErrCode.String()
		}
	}
}

// openHTTP2 connects, and begins HTTP/2 as a client. The connection ends with the test, or after a minute.
func openHTTP2(t *testing.T, at string) *http2.Framer {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // or it would wait for ever
	frames := http2.NewFramer(c, c)
	frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := frames.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return frames
}

// writeHead writes the head of a request, of names and values in turn.
func writeHead(t *testing.T, to *http2.Framer, stream uint32, end bool, fields ...string) {
	t.Helper()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSize(0) // so that each stands alone
	for i := 0; i < len(fields); i += 2 {
		if err := e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	err := to.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestHops: what is for one connection stays there.
func TestHops(t *testing.T) {
	at := free(t)
	seen := make(chan http.Header, 1)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		w.Header().Set("Keep-Alive", "timeout=1")
		w.Header().Set("X-End", "kept")
	}))
	defer app.Close()
	start(t, cluster("app", "", false, app.Listener.Addr().String()), listener(at, chain(hcm(nil, to("app")))))
	out := curl(
		t,
		"-i",
		"-H",
		"Connection: X-Private, keep-alive, Upgrade",
		"-H",
		"X-Private: 1",
		"-H",
		"Upgrade: websocket",
		"-H",
		"TE: trailers",
		"-H",
		"Keep-Alive: 5",
		"-H",
		"Proxy-Authorization: secret",
		"-H",
		"X-Forwarded-For: 10.0.0.1",
		"-H",
		"X-Forwarded-Client-Cert: URI=forged",
		"-H",
		"X-Public: 1",
		"http://"+at+"/",
	)
	h := <-seen
	for _, name := range []string{"X-Private", "Upgrade", "Keep-Alive",
		"Proxy-Authorization", "X-Forwarded-Client-Cert", "Connection"} {
		if v := h.Values(name); len(v) > 0 {
			t.Errorf("%s goes on as %q", name, v)
		}
	}
	if h.Get("X-Public") != "1" || h.Get("X-Forwarded-For") != "10.0.0.1" || h.Get("Te") != "trailers" {
		t.Errorf("what is for the application does not reach it: %v", h)
	}
	if strings.Contains(out, "Keep-Alive:") || !strings.Contains(out, "X-End: kept") {
		t.Errorf("the answer is %q", out)
	}
}

// TestSlow: a client that sends its request's head drop by drop, or too long a one, is let go; others go on.
func TestSlow(t *testing.T) {
	at := free(t)
	manager := hcm(nil, to("app"))
	manager["typed_config"].(object)["request_headers_timeout"] = "0.5s"
	manager["typed_config"].(object)["max_request_headers_kb"] = 8
	start(t, cluster("app", "", false, echo(t, "app")), listener(at, chain(manager)))
	var slow []net.Conn
	for range 50 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX: ")
		slow = append(slow, c)
	}
	if got := curl(t, "http://"+at+"/"); got != "app GET /\n" {
		t.Errorf("beside slow clients: %q", got)
	}
	for _, c := range slow {
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err) // it ends, with or without a word
		}
	}
	if out := curl(t, "-w", "%{http_code}", "-o", "/dev/null",
		"-H", "X: "+strings.Repeat("x", 16<<10), "http://"+at+"/"); out != "431" {
		t.Errorf("a head of 16 KiB: %q, want 431", out)
	}
}

// TestEarlyAnswer: an answer may begin before its request has come whole, and the rest of the request still goes on.
func TestEarlyAnswer(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		both := http.NewResponseController(w)
		_ = both.EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = both.Flush()
		_, _ = io.Copy(w, r.Body)
	}))
	defer app.Close()
	at := free(t)
	start(t, cluster("app", "", false, app.Listener.Addr().String()), listener(at, chain(hcm(nil, to("app")))))
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // or it would wait for ever
	const half = 64 << 10
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 2*half, strings.Repeat("a", half))
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("with half of the request sent: %v", err)
	}
	fmt.Fprint(c, strings.Repeat("b", half))
	got, err := io.ReadAll(answer.Body)
	if err != nil || string(got) != strings.Repeat("a", half)+strings.Repeat("b", half) {
		t.Errorf("%d bytes of %d came back: %v", len(got), 2*half, err)
	}
}

// uploads is an application that answers with the length of a request's body; below /early it answers a byte every
// 300 ms instead, whatever the request's body does.
type uploads struct {
	at       string
	accepted atomic.Int64 // connections
}

const pause = 300 * time.Millisecond

func newUploads(t *testing.T) *uploads {
	t.Helper()
	u := &uploads{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/early" {
			n, err := io.Copy(io.Discard, r.Body)
			if err == nil {
				fmt.Fprintln(w, n)
			}
			return
		}
		both := http.NewResponseController(w)
		_ = both.EnableFullDuplex()
		for range 15 {
			fmt.Fprint(w, "x")
			_ = both.Flush()
			time.Sleep(pause)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	s.Config.Protocols = &http.Protocols{}
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.ConnState = func(_ net.Conn, now http.ConnState) {
		if now == http.StateNew {
			u.accepted.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	u.at = s.Listener.Addr().String()
	return u
}

// TestStalledUploads: clients that stall in small bodies take no connections to endpoints from others, and their
// requests go on as soon as the bodies come, with all of the route's time.
func TestStalledUploads(t *testing.T) {
	at, app := free(t), newUploads(t)
	few := cluster("app", "", false, app.at)
	few["circuit_breakers"] = object{"thresholds": list{object{"max_connections": 3}}}
	route := object{"match": object{"prefix": "/"}, "route": object{"cluster": "app", "timeout": "3s"}}
	start(t, few, listener(at, chain(hcm(nil, route))))

	frames := openHTTP2(t, at)
	const streams = 100
	for i := range uint32(streams) {
		writeHead(t, frames, 2*i+1, false, ":method", "POST", ":scheme", "http", ":authority", "x", ":path", "/",
			"content-length", "10")
	}
	old, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	fmt.Fprint(old, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
	time.Sleep(3500 * time.Millisecond) // longer than the route's time
	if n := app.accepted.Load(); n != 0 {
		t.Errorf("stalled requests have %d connections", n)
	}
	if got := curl(t, "-w", "%{http_code}", "http://"+at+"/"); got != "0\n200" {
		t.Errorf("another client gets %q", got)
	}

	// A longer body goes on as it comes, within the route's time.
	long, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer long.Close()
	_ = long.SetDeadline(time.Now().Add(time.Minute)) // or it would wait for ever
	fmt.Fprint(long, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n12345")
	if a, err := http.ReadResponse(bufio.NewReader(long), nil); err != nil || a.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("a long body gets %v, %v", a, err)
	}

	fmt.Fprint(old, "67890")
	if a, err := http.ReadResponse(bufio.NewReader(old), nil); err != nil || a.StatusCode != http.StatusOK {
		t.Errorf("a late body gets %v, %v", a, err)
	}
	if err := frames.WriteData(1, true, []byte("1234567890")); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := frames.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if head, ok := frame.(*http2.MetaHeadersFrame); ok {
			if head.StreamID != 1 || head.PseudoValue("status") != "200" {
				t.Errorf("a late body over HTTP/2 gets %v", head)
			}
			break
		}
	}
	if n := app.accepted.Load(); n > 3 {
		t.Errorf("there were %d connections", n)
	}
}

// TestStreamIdle: a client that sends nothing of a body for the time that a stream may stand still gets a 408, from
// Envoy as from the proxy, and its connection ends.
func TestStreamIdle(t *testing.T) {
	app := newUploads(t)
	clusters := list{cluster("one", "", false, app.at), cluster("two", "", true, app.at)}
	manager := hcm(
		nil,
		object{"match": object{"prefix": "/two"}, "route": object{"cluster": "two", "timeout": "0s"}},
		to("one"),
	)
	manager["typed_config"].(object)["stream_idle_timeout"] = "0.5s"
	ours, theirs := free(t), free(t)
	start(t, clusters[0], clusters[1], listener(ours, chain(manager)))
	envoy(t, list{}, clusters, list{listener(theirs, chain(manager))})
	check := func(name string, stalls func() string, good func(string) bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := stalls(); !good(got) {
				t.Errorf("%q", got)
			}
		})
	}
	for by, at := range map[string]string{"proxy": ours, "Envoy": theirs} {
		for _, path := range []string{"/one", "/two"} {
			for _, body := range []string{
				"Content-Length: 10\r\n\r\n",
				"Content-Length: 10\r\n\r\n12345",
				"Content-Length: 100000\r\n\r\n12345",
				"Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
			} {
				text := "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + body
				check(fmt.Sprintf("%s %q", by, text), func() string { return stalls(t, at, text) }, func(got string) bool {
					return strings.HasPrefix(got, "HTTP/1.1 408 ") && strings.Count(got, "HTTP/1.1") == 1
				})
			}
			for _, length := range []string{"10", "100000"} {
				check(fmt.Sprintf("%s HTTP/2 %s %s", by, path, length), func() string {
					return byHTTP2(t, at, "POST", "x", ":path", path, "content-length", length)
				}, func(got string) bool { return got == "408" })
			}
		}
	}
}

// stalls sends the beginning of a request, and gives all that comes back until the connection ends.
func stalls(t *testing.T, at, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // or it would wait for ever
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return fmt.Sprintf("%s (%v)", b, err)
	}
	return string(b)
}

// TestSlowStreams: a request on which something moves, in either direction, does not stand still.
func TestSlowStreams(t *testing.T) {
	at, app := free(t), newUploads(t)
	manager := hcm(
		nil,
		object{"match": object{"prefix": "/two"}, "route": object{"cluster": "two", "timeout": "0s", "prefix_rewrite": "/"}},
		to("one"),
	)
	manager["typed_config"].(object)["stream_idle_timeout"] = "3s"
	start(t, cluster("one", "", false, app.at), cluster("two", "", true, app.at), listener(at, chain(manager)))
	for _, path := range []string{"/", "/early", "/two", "/twoearly"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			body, client := io.Pipe()
			early := strings.HasSuffix(path, "early")
			answered := make(chan struct{})
			go func() {
				defer client.Close()
				if early { // nothing before the answer is there
					fmt.Fprint(client, "x")
					<-answered
					return
				}
				for range 15 {
					time.Sleep(pause)
					fmt.Fprint(client, "x")
				}
			}()
			resp, err := http.Post("http://"+at+path, "text/plain", body)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			want := "15\n"
			if early {
				want = strings.Repeat("x", 15)
			}
			got := make([]byte, len(want))
			if n, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
				t.Errorf("%q, %v", got[:n], err)
			}
			close(answered)
		})
	}
}

// TestLongAnswer: a server whose head does not end, or that says more than one answer, is not believed.
func TestLongAnswer(t *testing.T) {
	at := free(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var n atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				if r.URL.Path == "/long" {
					fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
					for range 1 << 16 {
						if _, err := fmt.Fprint(c, "X-Long: "+strings.Repeat("x", 100)+"\r\n"); err != nil {
							return
						}
					}
					return
				}
				fmt.Fprintf(
					c,
					"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%dHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
					n.Add(1),
				)
				time.Sleep(100 * time.Millisecond)
			}()
		}
	}()
	start(t, cluster("app", "", false, l.Addr().String()), listener(at, chain(hcm(nil, to("app")))))
	if got := curl(t, "-w", "%{http_code}", "http://"+at+"/long"); got != "503" {
		t.Errorf("%q, want 503", got)
	}
	for want := int64(1); want < 4; want++ {
		if got := curl(t, "http://"+at+"/"); got != fmt.Sprint(want) {
			t.Errorf("%q, want %d", got, want)
		}
	}
}

// TestLoads: programs that others wrote put it under load, by both versions of HTTP, and every request is answered.
func TestLoads(t *testing.T) {
	at, in := free(t), free(t)
	r := newRoot(t)
	start(
		t,
		secrets(t, r, "server"),
		cluster("app", "", false, echo(t, "app")),
		listener(in, strict(chain(hcm(nil, to("app"))), "client")),
	)
	start(
		t,
		secrets(t, r, "client"),
		cluster("one", "server", false, in),
		cluster("two", "server", true, in),
		listener(
			at,
			chain(hcm(nil, object{"match": object{"prefix": "/two"}, "route": object{"cluster": "two"}}, to("one"))),
		),
	)
	for _, path := range []string{"/one", "/two"} {
		for _, args := range [][]string{{"--h1"}, {"-m", "10"}} {
			out, err := run(t, "", "h2load", append(args, "-n", "200", "-c", "10", "http://"+at+path)...)
			if err != nil || !strings.Contains(out, "200 succeeded, 0 failed, 0 errored") ||
				!strings.Contains(out, "status codes: 200 2xx") {
				t.Errorf("h2load %v %s: %v\n%s", args, path, err, out)
			}
		}
	}
	out, err := run(t, "", "wrk", "-t", "1", "-c", "20", "-d", "1", "http://"+at+"/one")
	if err != nil || strings.Contains(out, "Non-2xx") || strings.Contains(out, "Socket errors") {
		t.Errorf("wrk: %v\n%s", err, out)
	}
}
