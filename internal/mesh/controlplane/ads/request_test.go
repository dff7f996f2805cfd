package ads

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// reference parses a request with the generated decoder; nil: the decoder returns an error.
func reference(b []byte, delta bool) *request {
	var err *statuspb.Status
	var node *corev3.Node
	r := &request{delta: delta}
	if delta {
		var m discoveryv3.DeltaDiscoveryRequest
		if proto.Unmarshal(b, &m) != nil {
			return nil
		}
		err, node = m.GetErrorDetail(), m.GetNode()
		r.url, r.nonce = m.GetTypeUrl(), m.GetResponseNonce()
		r.names, r.drop = m.GetResourceNamesSubscribe(), m.GetResourceNamesUnsubscribe()
		r.known = m.GetInitialResourceVersions()
	} else {
		var m discoveryv3.DiscoveryRequest
		if proto.Unmarshal(b, &m) != nil {
			return nil
		}
		err, node = m.GetErrorDetail(), m.GetNode()
		r.url, r.nonce = m.GetTypeUrl(), m.GetResponseNonce()
		r.names, r.version = m.GetResourceNames(), m.GetVersionInfo()
	}
	r.refused, r.wrong = err != nil, err.GetMessage()
	r.id = node.GetId()
	return r
}

// FuzzRequest: for any request that the generated decoder accepts, parse returns the same content, unless the request
// is too large.
func FuzzRequest(f *testing.F) {
	node := &corev3.Node{Id: "id", Cluster: "c"}
	problem := &statuspb.Status{Code: 3, Message: "no"}
	for _, m := range []proto.Message{
		&discoveryv3.DiscoveryRequest{},
		&discoveryv3.DiscoveryRequest{VersionInfo: "v", Node: node, ResourceNames: []string{"a", "", "b"}, TypeUrl: "t",
			ResponseNonce: "n", ErrorDetail: problem, ResourceLocators: []*discoveryv3.ResourceLocator{{Name: "x"}}},
		&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: "t", ResourceNamesSubscribe: []string{"a", "b"},
			ResourceNamesUnsubscribe: []string{"c"}, InitialResourceVersions: map[string]string{"a": "1", "": ""},
			ResponseNonce: "n", ErrorDetail: problem},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		_, delta := m.(*discoveryv3.DeltaDiscoveryRequest)
		f.Add(b, delta)
		f.Add(append(b, b...), delta)
	}
	f.Fuzz(func(t *testing.T, b []byte, delta bool) {
		got := &request{delta: delta}
		err := got.parse(b)
		want := reference(b, delta)
		if want == nil || err != nil && !errors.Is(err, errMalformed) {
			return
		}
		if err != nil {
			t.Fatalf("%v, but the generated decoder takes %+v", err, want)
		}
		if !slices.Equal(got.names, want.names) || !slices.Equal(got.drop, want.drop) ||
			!maps.Equal(got.known, want.known) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		got.node, got.names, got.drop, got.known = 0, nil, nil, nil
		want.names, want.drop, want.known = nil, nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func TestLongReasons(t *testing.T) {
	long := appendString(nil, 2, strings.Repeat("ü", maxWrong))
	r := &request{}
	err := r.parse(protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), long))
	if err != nil || len(r.wrong) > maxWrong || len(r.wrong) < maxWrong-1 || !r.refused {
		t.Errorf("%d bytes, %v", len(r.wrong), err)
	}
}

// Encoded responses decode, with the generated decoder, to what was put in.
func TestEncoding(t *testing.T) {
	m := messageOf("C", "name", "x")
	r, err := encoder.Resource(m)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := encoder.Resource(proto.Clone(m)); again != r {
		t.Error("the same is another resource")
	}
	removed := []string{"gone", "also"}
	x := response{sub: &subscription{url: ClusterType}, flight: &flight{nonce: "7"}}
	x.encode(true, "v", []*Resource{r, r}, removed)
	var d discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(x.parts.Materialize(), &d); err != nil {
		t.Fatal(err)
	}
	if d.GetTypeUrl() != ClusterType || d.GetNonce() != "7" || d.GetSystemVersionInfo() != "v" ||
		len(d.GetResources()) != 2 || !slices.Equal(d.GetRemovedResources(), removed) ||
		d.GetResources()[1].GetVersion() != r.Version() || len(r.Version()) != 24 {
		t.Errorf("%v", &d)
	}
	if got, err := d.GetResources()[0].GetResource().UnmarshalNew(); err != nil || !proto.Equal(got, m) {
		t.Errorf("%v, %v", got, err)
	}
	x.encode(false, "v", []*Resource{r}, nil)
	var w discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(x.parts.Materialize(), &w); err != nil {
		t.Fatal(err)
	}
	got, err := w.GetResources()[0].UnmarshalNew()
	if err != nil || !proto.Equal(got, m) || w.GetVersionInfo() != "v" || len(w.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("%v, %v", &w, err)
	}
}
