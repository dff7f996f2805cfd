package istiod

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/services"
)

// TestFind: a program is found by TARE_ISTIOD and on PATH, and never in the working directory.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	here := filepath.Join(dir, "bin", "pilot-discovery")
	below := filepath.Join(dir, "a", "b")
	for _, d := range []string{filepath.Dir(here), below} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(here, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ dir, variable, path, want string }{
		"bin of the directory":   {dir, "", "/usr/bin", ""},
		"bin of one above":       {below, "", "/usr/bin", ""},
		"the directory, by PATH": {filepath.Dir(here), "", ".", ""},
		"PATH":                   {below, "", filepath.Dir(here), here},
		"the variable":           {below, here, "/usr/bin", here},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(c.dir)
			t.Setenv("TARE_ISTIOD", c.variable)
			t.Setenv("PATH", c.path)
			got, err := Find()
			if got != c.want || (err == nil) != (c.want != "") || err != nil && fault.CodeOf(err) != fault.Machine {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// TestKubernetes: the API of the empty cluster answers in the forms that clients accept.
func TestKubernetes(t *testing.T) {
	k, err := newKubernetes()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	do := func(method, path, accept, body string) (int, map[string]any) {
		t.Helper()
		q, err := http.NewRequest(method, "http://"+k.at+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Accept", accept)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		o := map[string]any{}
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		return r.StatusCode, o
	}
	for _, c := range []struct {
		method, path, accept, body string
		code                       int
		key, want                  string
	}{
		{"GET", "/version", "", "", 200, "major", "1"},
		{"GET", "/api", "", "", 200, "kind", "APIVersions"},
		{"GET", "/apis", "", "", 200, "kind", "APIGroupList"},
		{"GET", "/apis/apps/v1", "", "", 200, "groupVersion", "apps/v1"},
		{"GET", "/api/v1/pods?limit=500", "", "", 200, "kind", ""},
		{"GET", "/api/v1/namespaces/x/configmaps", "", "", 200, "kind", ""},
		{"GET", "/apis/discovery.k8s.io/v1/endpointslices",
			"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
			"", 200, "kind", "PartialObjectMetadataList"},
		{"GET", "/api/v1/pods?watch=true&sendInitialEvents=true", "", "", 422, "reason", "Invalid"},
		{"GET", "/api/v1/namespaces/istio-system", "", "", 404, "reason", "NotFound"},
		{"GET", "/api/v1/namespaces/x/configmaps/y", "", "", 404, "reason", "NotFound"},
		{"PUT", "/api/v1/namespaces/x/configmaps/y", "", `{"kind":"ConfigMap"}`, 200, "kind", "ConfigMap"},
		{"POST", "/api/v1/namespaces/x/configmaps", "", `{`, 404, "reason", "NotFound"},
	} {
		code, o := do(c.method, c.path, c.accept, c.body)
		if got, _ := o[c.key].(string); code != c.code || got != c.want {
			t.Errorf("%s %s: %d %v", c.method, c.path, code, o)
		}
	}
	// A watch sends nothing, and ends with the server.
	r, err := http.Get("http://" + k.at + "/api/v1/pods?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	ended := make(chan struct{})
	go func() {
		_, _ = io.ReadAll(r.Body)
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("a watch ends by itself")
	case <-time.After(50 * time.Millisecond):
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// TestBehind: ControlPlane passes services to the process by --behind, in the form that the setting accepts.
func TestBehind(t *testing.T) {
	argv, err := ControlPlane("/bin/tare", map[string]string{"10.96.0.2:80": "127.0.0.1:8081",
		"10.96.0.1:80": "127.0.0.1:8080"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/bin/tare", kind.PlayCommand, string(kind.Application), "istiod"}
	text, ok := strings.CutPrefix(argv[len(argv)-1], "--behind=")
	if !slices.Equal(argv[:4], want) || !ok {
		t.Fatalf("%q", argv)
	}
	all, err := behind(text)
	if err != nil || len(all) != 2 || all[1].Address.String() != "10.96.0.2:80" ||
		all[1].Endpoints[0].String() != "127.0.0.1:8081" {
		t.Errorf("%q: %+v, %v", text, all, err)
	}
	if all[0].Host() == all[1].Host() {
		t.Errorf("both are %s", all[0].Host())
	}
	for _, wrong := range []string{"10.96.0.1:80", "10.96.0.1=127.0.0.1:80", "a=b"} {
		if err := (guest{}).Check(param.Values{behindKey: wrong}); err == nil ||
			!strings.Contains(err.Error(), "ADDRESS=ENDPOINT") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// TestStartFails: an istiod that does not start leaves nothing behind, and the error has its output.
func TestStartFails(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	file := filepath.Join(t.TempDir(), "pilot")
	if err := os.WriteFile(file, []byte("#!/bin/sh\necho what is wrong\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{Binary: file})
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), "what is wrong") {
		t.Errorf("got %v", err)
	}
	if _, err := Start(t.Context(), Options{Binary: filepath.Join(t.TempDir(),
		"nothing")}); fault.CodeOf(err) != fault.Machine {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestEntries: ServiceEntries are listed, and watches get all later changes, each object once in its latest form.
func TestEntries(t *testing.T) {
	k, err := newKubernetes()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	type entry struct {
		Metadata struct{ Name, ResourceVersion string }
		Spec     struct{ N int }
	}
	get := func(path string) *json.Decoder {
		t.Helper()
		r, err := http.Get("http://" + k.at + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Body.Close() })
		return json.NewDecoder(r.Body)
	}
	put := func(name, spec string) {
		k.put(Object{Kind: "ServiceEntry", Namespace: "default", Name: name, Spec: []byte(spec)})
	}
	put("a", `{"n":1}`)
	put("b", `{"n":2}`)
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []entry
	}
	if err := get(groupPath + "serviceentries?limit=500").Decode(&list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || list.Items[0].Metadata.Name != "a" || list.Items[1].Spec.N != 2 {
		t.Errorf("listed: %+v", list)
	}
	put("a", `{"n":3}`)
	watch := get(groupPath + "serviceentries?watch=true&resourceVersion=" + list.Metadata.ResourceVersion)
	next := func(name string, n int) {
		t.Helper()
		var e struct {
			Type   string
			Object entry
		}
		if err := watch.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Type != "MODIFIED" || e.Object.Metadata.Name != name || e.Object.Spec.N != n {
			t.Errorf("got %+v, not %s with %d", e, name, n)
		}
	}
	next("a", 3)                                                                          // made before the watch began
	k.put(Object{Kind: "Sidecar", Namespace: "shop", Name: "a", Spec: []byte(`{"n":9}`)}) // of another type
	put("b", `{"n":4}`)
	next("b", 4)
	if err := get(groupPath + "sidecars").Decode(&list); err != nil || len(list.Items) != 1 || list.Items[0].Spec.N != 9 {
		t.Errorf("sidecars: %+v %v", list, err)
	}
	var defined struct{ Items []entry }
	if err := get(definitions).Decode(&defined); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range defined.Items {
		names[d.Metadata.Name] = true
	}
	if len(names) != 2 || !names["serviceentries."+group] || !names["sidecars."+group] {
		t.Errorf("defined: %v", names)
	}
}

// TestMade: endpoints' addresses encode service and change, and only this machine can connect to them.
func TestMade(t *testing.T) {
	all, err := listenAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := &made{all: all}
	m.ready.Services, m.ready.Endpoints, m.ready.Port = 3, 2, uint16(all.Addr().(*net.TCPAddr).Port)
	defer m.Close()
	accepted := make(chan error, 1)
	go func() { accepted <- m.accept() }()
	var e struct {
		Endpoints []struct {
			Address string
			Ports   map[string]uint16
		}
	}
	if err := json.Unmarshal(m.entry(1, 2).Spec, &e); err != nil || len(e.Endpoints) != 2 {
		t.Fatalf("%+v: %v", e, err)
	}
	for _, x := range e.Endpoints {
		at := netip.AddrPortFrom(netip.MustParseAddr(x.Address), x.Ports["main"])
		if service, change, ok := m.ready.ChangeOf(at); !ok || service != 1 || change != 2 {
			t.Errorf("%s tells service %d, change %d (%v)", at, service, change, ok)
		}
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	m.ready.Services, m.ready.Endpoints = maxServices, services.MaxEndpoints
	if n := m.ready.Changes(); n < 12 {
		t.Errorf("of the largest mesh %d changes are told from each other", n)
	}
}
