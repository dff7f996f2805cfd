package istiod

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/fault"
)

// TestKubernetes: the API of the empty cluster answers in the forms that clients take.
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
		{"GET", "/apis/discovery.k8s.io/v1/endpointslices", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
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
	// A watch says nothing, and ends with the server.
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

// TestStartFails: an istiod that does not start leaves nothing, and is told of with what it said.
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
	if _, err := Start(t.Context(), Options{Binary: filepath.Join(t.TempDir(), "nothing")}); fault.CodeOf(err) != fault.Machine {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
