package probes_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"tare/internal/mesh/controlplane/injection/probes"
)

// ask returns the status of a probe at a server whose table has only that probe.
func ask(t *testing.T, a probes.Ask) int {
	t.Helper()
	a.Timeout = max(a.Timeout, 1)
	s := probes.New(probes.Table{probes.Path("app", "liveness"): a}, "127.0.0.1")
	to := httptest.NewRecorder()
	s.ServeHTTP(to, httptest.NewRequest(http.MethodGet, "/probe/app/liveness", nil))
	return to.Code
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// closed returns a port at which nothing listens.
func closed(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return portOf(t, l.Addr().String())
}

func TestHTTP(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/slow":
			time.Sleep(1500 * time.Millisecond)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
		case r.URL.Path == "/further":
			http.Redirect(w, r, "/sick", http.StatusFound)
		case r.URL.Path == "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		case r.URL.Path == "/%zz":
		case r.URL.Path == "/sick":
			w.WriteHeader(http.StatusTeapot)
		case r.URL.Path != "/well" || r.URL.RawQuery != "a=b" || r.Host != "web.shop" || r.Header.Get("X-Probe") != "1" ||
			r.UserAgent() != "own" || r.Header.Get("Accept") != "*/*":
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	headers := []probes.Header{{Name: "Host", Value: "web.shop"}, {Name: "x-probe", Value: "1"},
		{Name: "User-Agent", Value: "own"}}
	for _, s := range []*httptest.Server{plain, secure} {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]int{"/well?a=b": 200, "well?a=b": 200, "/sick": 418, "/moved": 302,
			"/further": 418, "/round": 503, "/%zz": 200, "/slow": 503} {
			h := &probes.HTTP{Path: path, Port: portOf(t, u.Host), TLS: s == secure, Headers: headers}
			if got := ask(t, probes.Ask{HTTP: h}); got != want {
				t.Errorf("%s%s: %d, want %d", s.URL, path, got, want)
			}
		}
	}
	if got := ask(t, probes.Ask{HTTP: &probes.HTTP{Path: "/well", Port: closed(t)}}); got != 503 {
		t.Errorf("where nobody listens: %d", got)
	}
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for port, want := range map[int]int{portOf(t, l.Addr().String()): 200, closed(t): 503} {
		if got := ask(t, probes.Ask{TCP: &probes.TCP{Port: port}}); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, of := grpc.NewServer(), health.NewServer()
	healthv1.RegisterHealthServer(s, of)
	of.SetServingStatus("sick", healthv1.HealthCheckResponse_NOT_SERVING)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for service, want := range map[string]int{"": 200, "sick": 503, "nobody": 503} {
		if got := ask(t, probes.Ask{GRPC: &probes.GRPC{Port: portOf(t, l.Addr().String()), Service: service}}); got != want {
			t.Errorf("%q: %d, want %d", service, got, want)
		}
	}
	if got := ask(t, probes.Ask{GRPC: &probes.GRPC{Port: closed(t)}}); got != 503 {
		t.Errorf("where nobody listens: %d", got)
	}
}

func TestParse(t *testing.T) {
	for _, text := range []string{``, `{`, `{"/x":{"tcp":{"port":1},"timeout":1}}`, `{"/probe/a/liveness":{"timeout":1}}`,
		`{"/probe/a/liveness":{"tcp":{"port":0},"timeout":1}}`, `{"/probe/a/liveness":{"tcp":{"port":70000},"timeout":1}}`,
		`{"/probe/a/liveness":{"tcp":{"port":1}}}`} {
		if _, err := probes.Parse([]byte(text)); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
	if s := probes.New(nil, "127.0.0.1"); s != nil {
		to := httptest.NewRecorder()
		s.ServeHTTP(to, httptest.NewRequest(http.MethodGet, "/probe/other/liveness", nil))
		if to.Code != http.StatusNotFound {
			t.Errorf("a probe of nobody: %d", to.Code)
		}
	}
}
