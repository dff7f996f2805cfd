package controlplane

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/credentials/insecure"

	"tare/internal/mesh/controlplane/ads"
	"tare/test/ring"
)

// TestAdmin: metrics count responses and answers, and the history lists each change with the proxies it concerned.
func TestAdmin(t *testing.T) {
	admin := NewAdmin()
	text, err := json.Marshal(ring.Mesh{Services: 6, Calls: 2}.Config(1))
	if err != nil {
		t.Fatal(err)
	}
	p, address := served(t, string(text), PlaneOptions{Admin: admin})
	web := httptest.NewServer(admin.Handler())
	defer web.Close()
	stream := deltas(t.Context(), t, address, insecure.NewCredentials())
	send := func(m *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(wrong *status.Status) {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: wrong})
	}
	send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: ring.Proxy(3)}, TypeUrl: ads.EndpointType,
		ResourceNamesSubscribe: []string{"*"}})
	answer(nil)
	for i, wrong := range []*status.Status{nil, {Code: 3, Message: "no"}} {
		of := map[string][]Endpoint{"s2": {{Address: fmt.Sprintf("10.200.0.1:%d", 1+i)}}}
		if _, err := p.SetEndpoints(t.Context(), of); err != nil {
			t.Fatal(err)
		}
		answer(wrong)
	}
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/strange.Type" + strings.Repeat("x", 100)})
	if _, err := stream.Recv(); err != nil { // by the time it arrives, the answers have been processed
		t.Fatal(err)
	}
	var changes []Change
	if err := json.Unmarshal(get(t, web.URL+"/changes"), &changes); err != nil || len(changes) != 2 {
		t.Fatalf("%+v, %v", changes, err)
	}
	for i, c := range changes {
		if c.Responses != 1 || c.Proxies != 1 || c.Answers != 1 || c.Refused != 1-i || c.FirstSent <= 0 ||
			c.LastSent != c.FirstSent || c.LastAnswer < c.LastSent || time.Since(c.At) > time.Hour {
			t.Errorf("%d: %+v", i, c)
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(get(t, web.URL+"/metrics"))))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"responses_total/ClusterLoadAssignment": 3, "acks_total/ClusterLoadAssignment": 2,
		"nacks_total/ClusterLoadAssignment": 1, "resources_total/ClusterLoadAssignment": 4, "responses_total/other": 1,
		"changes_total/": 3, "streams/": 1, "proxies/": 6, "answer_seconds/": 2,
	} {
		name, kind, _ := strings.Cut(name, "/")
		got, found := 0.0, false
		for _, m := range families["tare_controlplane_"+name].GetMetric() {
			if kind == "" || m.GetLabel()[0].GetValue() == kind {
				got += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				found = true
			}
		}
		if !found || got != want {
			t.Errorf("%s of %q is %g (%v), want %g", name, kind, got, found, want)
		}
	}
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, r.Status, err)
	}
	return b
}

// TestHistoryIsBounded: the history keeps only the last changes, in whichever order data planes answer.
func TestHistoryIsBounded(t *testing.T) {
	h := newHistory()
	for i := range 3 * mostChanges {
		h.sent(Sent{Since: int64(1 + i), Time: int64(10 + i), Node: "n"})
		h.answered(Answer{Since: int64(1 + i/2), Time: int64(20 + i)})
		h.sent(Sent{Since: int64(1 + i), Time: int64(15 + i), Node: "m"})
		h.sent(Sent{Since: int64(1 + i), Time: int64(15 + i), Node: "m", Asked: true})
	}
	list := h.list()
	if len(list) != mostChanges || list[0].Responses != 2 || list[0].Proxies != 2 || list[0].FirstSent != 9e-9 {
		t.Errorf("%d changes, the last %+v", len(list), list[0])
	}
	for i := range mostProxies + 10 {
		for range 2 {
			h.sent(Sent{Since: 1000, Time: 1001, Node: fmt.Sprint(i)})
		}
	}
	last := h.list()[0]
	if kept := len(h.changes[len(h.changes)-1].proxies); kept != mostProxies || last.Proxies != mostProxies ||
		last.Others != 2*10 || last.Responses != 2*(mostProxies+10) {
		t.Errorf("%d proxies are kept of %+v", kept, last)
	}
}

// TestHistoryOfStrangers: resources sent because a data plane reports outdated versions when it connects are not part
// of a change, whatever name the data plane gives itself.
func TestHistoryOfStrangers(t *testing.T) {
	admin := NewAdmin()
	p, address := served(t, "services: [{name: a}]", PlaneOptions{Admin: admin})
	stream := deltas(t.Context(), t, address, insecure.NewCredentials())
	take := func() {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(),
			ResponseNonce: r.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "stranger"}, TypeUrl: ads.ClusterType,
		InitialResourceVersions: map[string]string{"a": "old", "b": "gone"}}); err != nil {
		t.Fatal(err)
	}
	take() // the version of resource a is outdated
	take() // resource b does not exist
	if list := admin.history.list(); len(list) > 0 {
		t.Errorf("%+v", list)
	}
	if _, err := p.Set(t.Context(), compiled(t, "services: [{name: a, connect_timeout: 3s}]")); err != nil {
		t.Fatal(err)
	}
	take()
	if list := admin.history.list(); len(list) != 1 || list[0].Responses != 1 || list[0].Proxies != 1 {
		t.Errorf("%+v", list)
	}
}
