package clusterservices

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/part"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/services"
)

const pod = "run-1-7-mesh"

// server plays an API server that keeps what it is sent. test/kube has the real one.
type server struct {
	mu      sync.Mutex
	objects []object
	ports   map[string]int // by EndpointSlice
	removed []string       // what was asked for with DELETE
	full    bool           // it refuses changes
	busy    int            // how many requests it still answers with 429
	refuses int            // status with which it answers; 0: none
	address string         // of Services
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in object
	_ = json.NewDecoder(r.Body).Decode(&in) // a GET has null
	_, name, _ := strings.Cut(r.URL.Path, "/endpointslices/")
	answer := any(in)
	switch {
	case r.Header.Get("Authorization") != "Bearer secret":
		w.WriteHeader(http.StatusUnauthorized)
	case s.busy > 0:
		s.busy--
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	case s.refuses != 0:
		w.WriteHeader(s.refuses)
		answer = object{"message": "pods is forbidden\x1b[31m: User cannot get"}
	case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/pods/"):
		answer = object{"metadata": object{"uid": "u1", "labels": object{instance: "run-1", trial: "7"}}}
	case r.Method == http.MethodDelete:
		s.removed = append(s.removed, r.URL.Path+" "+r.URL.Query().Get("labelSelector"))
	case r.Method == http.MethodPost && in["kind"] == "Service":
		s.objects = append(s.objects, in)
		answer = object{"spec": object{"clusterIP": s.address}}
	case r.Method == http.MethodPost:
		s.objects = append(s.objects, in)
		s.ports[in["metadata"].(object)["name"].(string)] = portOf(in)
	case s.full:
		w.WriteHeader(http.StatusTooManyRequests)
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == "application/merge-patch+json":
		s.ports[name] = portOf(in)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func portOf(slice object) int { return int(slice["ports"].([]any)[0].(object)["port"].(float64)) }

// account starts the server, and returns the directory with the service account of its pods.
func (s *server) account(t *testing.T) string {
	t.Helper()
	s.ports = map[string]int{}
	if s.address == "" {
		s.address = "10.96.0.7"
	}
	api := httptest.NewTLSServer(s)
	t.Cleanup(api.Close)
	host, port, err := net.SplitHostPort(api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	t.Setenv(part.PodVariable, pod)
	dir := t.TempDir()
	for name, data := range map[string][]byte{"token": []byte("secret\n"), "namespace": []byte("ns"),
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// run serves count Services until the test ends, and returns the ready message; an error if there is none.
func (s *server) run(t *testing.T, count int) (services.Ready, error) {
	t.Helper()
	a, err := inPod(s.account(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	is, ended := make(chan services.Ready, 1), make(chan error, 1)
	go func() {
		ended <- serve(ctx, a, count, "127.0.0.1:0", func(r services.Ready) error { is <- r; return nil })
	}()
	select {
	case r := <-is:
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		return r, nil
	case err := <-ended:
		cancel()
		return services.Ready{}, err
	}
}

// endpoint returns what the endpoint of a Service answers.
func (s *server) endpoint(t *testing.T, service string) (number, change int) {
	t.Helper()
	s.mu.Lock()
	at := fmt.Sprintf("127.0.0.1:%d", s.ports[service])
	s.mu.Unlock()
	return ask(t, at)
}

func ask(t *testing.T, at string) (service, change int) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if service, change, err = services.ReadAnswer(c); err != nil {
		t.Fatal(err)
	}
	return service, change
}

// TestServe: each Service has an endpoint that answers with its number, and a change moves it to another. The endpoint
// before still answers. All objects belong to the pod.
func TestServe(t *testing.T) {
	s := &server{busy: 3} // no request is lost while the API server is busy
	ready, err := s.run(t, 3)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("10.96.0.7:80")
	if !slices.Equal(ready.Addresses, []netip.AddrPort{at, at, at}) {
		t.Errorf("%+v", ready)
	}
	s.mu.Lock()
	const old = " tare/cluster-services,app.kubernetes.io/instance=run-1,tare/trial!=7"
	if !slices.Equal(s.removed, []string{"/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices" + old,
		"/api/v1/namespaces/ns/services" + old}) {
		t.Errorf("of earlier trials it removes %q", s.removed)
	}
	if len(s.objects) != 6 {
		t.Errorf("%d objects", len(s.objects))
	}
	for _, o := range s.objects {
		meta := o["metadata"].(object)
		owner := meta["ownerReferences"].([]any)[0].(object)
		if owner["uid"] != "u1" || owner["name"] != pod || meta["labels"].(object)[instance] != "run-1" {
			t.Errorf("%+v", meta)
		}
	}
	before := fmt.Sprintf("127.0.0.1:%d", s.ports[pod+"-s1"])
	s.mu.Unlock()

	if _, err := services.Dial(t.Context(), ready.Control, "guessed"); err == nil {
		t.Error("it takes changes of somebody without the key")
	}
	c, err := services.Dial(t.Context(), ready.Control, ready.Key)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := []int{1, 1, 1}
	for n, what := range []int{1, services.All, 1} {
		if err := c.Ask(what); err != nil {
			t.Fatal(err)
		}
		made, err := c.Changed()
		if err != nil || made.Number != n+2 || made.Accepted <= 0 || made.Sent != 0 {
			t.Fatalf("%+v, %v", made, err)
		}
		for i := range want {
			if what == i || what == services.All {
				want[i] = made.Number
			}
			if service, change := s.endpoint(t, fmt.Sprintf("%s-s%d", pod, i)); service != i || change != want[i] {
				t.Errorf("Service %d answers %d and %d, want %d", i, service, change, want[i])
			}
		}
		if n == 0 {
			if service, change := ask(t, before); service != 1 || change != 1 {
				t.Errorf("the endpoint before answers %d, %d", service, change)
			}
		}
	}
}

// TestChangeRefused: those who ask are told why the API server has not taken a change.
func TestChangeRefused(t *testing.T) {
	s := &server{full: true}
	ready, err := s.run(t, 1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := services.Dial(t.Context(), ready.Control, ready.Key)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ask(0); err != nil {
		t.Fatal(err)
	}
	if err := c.Refused(time.Minute); err == nil || !strings.Contains(err.Error(), "429 Too Many Requests") {
		t.Error(err)
	}
}

// TestRefusals: what the application cannot do ends it with an error that says why.
func TestRefusals(t *testing.T) {
	if _, err := inPod(t.TempDir()); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(fault.HintOf(err), "cluster: {accounts:") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	for want, c := range map[string]struct {
		s    *server
		hint string
	}{
		`403 Forbidden: pods is forbidden\x1b[31m: User cannot get`: {&server{refuses: 403}, "deploy/kubernetes/services.yaml"},
		"500 Internal Server Error":                                 {&server{refuses: 500}, ""},
		`the Service has the address "fd00::7"`:                     {&server{address: "fd00::7"}, "IPv4"},
	} {
		_, err := c.s.run(t, 1)
		if err == nil || fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), want) ||
			!strings.Contains(fault.HintOf(err), c.hint) {
			t.Errorf("%v (%s), not %q", err, fault.HintOf(err), want)
		}
	}
}

// TestGuest: the application takes changes at the port of its Service, and many Services have time to be made.
func TestGuest(t *testing.T) {
	if v := (guest{}).At(kind.Site{Host: "0.0.0.0", Port: 8080}); v[listenKey] != "0.0.0.0:8080" {
		t.Errorf("%v", v)
	}
	about := guest{}.About()
	few, many := about.ReadyWithin(param.Values{servicesKey: "1"}), about.ReadyWithin(param.Values{servicesKey: "1000"})
	if many < few+30*time.Second {
		t.Errorf("%v, and %v with 1,000", few, many)
	}
}
