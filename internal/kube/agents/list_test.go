package agents

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
)

// TestExpiredList: a list of pages that takes so long that the API server no longer has its version goes on with the
// token in the refusal, and no object is listed twice.
func TestExpiredList(t *testing.T) {
	const page = `{"kind":"NodeList","apiVersion":"v1","metadata":{`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Query().Get("continue") {
		case "":
			_, _ = io.WriteString(w, page+`"continue":"old","resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}`)
		case "old":
			w.WriteHeader(http.StatusGone)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","metadata":{"continue":"new"},"status":"Failure",
				"reason":"Expired","code":410}`)
		case "new":
			_, _ = io.WriteString(w, page+`"resourceVersion":"2"},"items":[{"metadata":{"name":"b"}}]}`)
		}
	}))
	defer server.Close()
	c, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := c.Nodes(t.Context())
	if err != nil || len(nodes) != 2 || nodes[0].Name != "a" || nodes[1].Name != "b" {
		t.Errorf("%+v, %v", nodes, err)
	}
}

// TestWanted: the number of agents that there are to be is that of the DaemonSet itself, and unknown while its
// controller has not seen its last change.
func TestWanted(t *testing.T) {
	for text, want := range map[string]int{
		`{"metadata":{"uid":"u","generation":2},"status":{"observedGeneration":2,"desiredNumberScheduled":3}}`: 3,
		`{"metadata":{"uid":"u","generation":2},"status":{"observedGeneration":1,"desiredNumberScheduled":3}}`: 0,
		`{"metadata":{"uid":"v"},"status":{"desiredNumberScheduled":3}}`:                                       0,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind":"DaemonSetList","apiVersion":"apps/v1","items":[`+text+`]}`)
		}))
		defer server.Close()
		c, err := New(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Wanted(t.Context(), Set{Namespace: "ns", UID: "u"}); n != want || err != nil {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
}
