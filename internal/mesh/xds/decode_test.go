package xds

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// wrapped puts a resource into the wrapper that carries a time to live.
func wrapped(t testing.TB, m *discoveryv3.Resource) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// message is a response as bytes.
type message struct {
	b     []byte
	delta bool
}

// responses returns messages of both variants.
func responses(t testing.TB) map[string]message {
	one, two := &anypb.Any{TypeUrl: Clusters.TypeURL(), Value: []byte("one")}, &anypb.Any{TypeUrl: "other",
		Value: []byte{}}
	out := map[string]message{}
	add := func(name string, m proto.Message, more ...byte) {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		_, delta := m.(*discoveryv3.DeltaDiscoveryResponse)
		out[name] = message{append(b, more...), delta}
	}
	delta := func(r ...*discoveryv3.Resource) *discoveryv3.DeltaDiscoveryResponse {
		return &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "v", TypeUrl: Endpoints.TypeURL(), Nonce: "n",
			Resources: r}
	}
	add("world", &discoveryv3.DiscoveryResponse{VersionInfo: "v", TypeUrl: Clusters.TypeURL(), Nonce: "n",
		Resources: []*anypb.Any{one, two}})
	add("world, empty", &discoveryv3.DiscoveryResponse{})
	add("world, wrapped", &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{wrapped(t,
		&discoveryv3.Resource{Name: "w", Resource: one, Ttl: durationpb.New(1)})}})
	add("world, of a control plane", &discoveryv3.DiscoveryResponse{ControlPlane: &corev3.ControlPlane{Identifier: "x"},
		Resources: []*anypb.Any{one}})
	add("world, canary", &discoveryv3.DiscoveryResponse{Canary: true, Resources: []*anypb.Any{one}})
	add("world, errors", &discoveryv3.DiscoveryResponse{ResourceErrors: []*discoveryv3.ResourceError{{}}})
	add("deltas", delta(&discoveryv3.Resource{Name: "a", Version: "1", Resource: one},
		&discoveryv3.Resource{Name: "b", Resource: two}))
	removed := delta()
	removed.RemovedResources = []string{"x", "", "y"}
	add("deltas, removed", removed)
	add("deltas, without a resource", delta(&discoveryv3.Resource{Name: "a"}))
	add("deltas, wrapped", delta(&discoveryv3.Resource{Name: "a",
		Resource: wrapped(t, &discoveryv3.Resource{Name: "w", Resource: one, Ttl: durationpb.New(1)})}))
	add("deltas, time to live", delta(&discoveryv3.Resource{Name: "a", Resource: one, Ttl: durationpb.New(1)}))
	add("deltas, aliases", delta(&discoveryv3.Resource{Name: "a", Resource: one, Aliases: []string{"b"}}))
	add("deltas, not to be cached", delta(&discoveryv3.Resource{Resource: one,
		CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true}}))
	add("deltas, by parameters", delta(&discoveryv3.Resource{ResourceName: &discoveryv3.ResourceName{Name: "a"},
		Resource: one}))
	of := delta(&discoveryv3.Resource{Name: "a", Resource: one})
	of.ControlPlane = &corev3.ControlPlane{Identifier: "x"}
	add("deltas, of a control plane", of)
	add("nonce twice", delta(), append(protowire.AppendTag(nil, fieldNonce, protowire.BytesType), 1, 'm')...)
	add("not UTF-8", delta(), append(protowire.AppendTag(nil, fieldRemoved, protowire.BytesType), 1, 0xff)...)
	add("cut off", delta(), protowire.AppendTag(nil, fieldNonce, protowire.BytesType)...)
	// A resource in two parts is merged.
	half := protowire.AppendBytes(protowire.AppendTag(nil, resourceAny, protowire.BytesType),
		protowire.AppendString(protowire.AppendTag(nil, anyType, protowire.BytesType), "t"))
	half = protowire.AppendBytes(protowire.AppendTag(half, resourceAny, protowire.BytesType),
		protowire.AppendString(protowire.AppendTag(nil, anyValue, protowire.BytesType), "v"))
	add("in two parts", delta(), protowire.AppendBytes(protowire.AppendTag(nil, fieldResource, protowire.BytesType),
		half)...)
	return out
}

// generated decodes a response with the generated decoder.
func generated(b []byte, delta bool) (m *discoveryv3.DeltaDiscoveryResponse, err error) {
	m = &discoveryv3.DeltaDiscoveryResponse{}
	if delta {
		return m, proto.Unmarshal(b, m)
	}
	var world discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(b, &world); err != nil {
		return nil, err
	}
	m.TypeUrl, m.SystemVersionInfo, m.Nonce = world.GetTypeUrl(), world.GetVersionInfo(), world.GetNonce()
	for _, a := range world.GetResources() {
		m.Resources = append(m.Resources, &discoveryv3.Resource{Resource: a})
	}
	return m, nil
}

// sameResponse compares decode with the generated decoder, which also refuses responses because of fields that the
// client skips.
func sameResponse(t *testing.T, b []byte, delta bool) {
	t.Helper()
	r := &response{delta: delta}
	err := r.decode(b)
	m, wrong := generated(b, delta)
	if wrong != nil {
		return
	}
	if err != nil {
		if len(m.GetSystemVersionInfo())+len(m.GetNonce()) <= maxText {
			t.Errorf("the client refuses what the generated decoder takes: %v", err)
		}
		return
	}
	want := everything(&response{delta: true})
	want.typeURL, want.version, want.nonce = m.GetTypeUrl(), m.GetSystemVersionInfo(), m.GetNonce()
	want.typeURL = want.typeURL[:min(len(want.typeURL), maxText+1)]
	want.removed, want.count = m.GetRemovedResources(), len(m.GetResources())
	for _, from := range m.GetResources() {
		cut := func(s string) string { return s[:min(len(s), maxText+1)] }
		it := item{typeURL: from.GetResource().GetTypeUrl(), value: from.GetResource().GetValue(), name: cut(from.GetName()),
			version: cut(from.GetVersion()), ttl: from.GetTtl() != nil}
		var in discoveryv3.Resource
		if it.typeURL == wrappedURL && proto.Unmarshal(it.value, &in) == nil {
			it.typeURL, it.value = in.GetResource().GetTypeUrl(), in.GetResource().GetValue()
			if it.ttl = it.ttl || in.GetTtl() != nil; !delta {
				it.name = cut(in.GetName())
			}
		} else if it.typeURL == wrappedURL {
			return // the client may accept it, because it skips a part of the wrapper
		}
		it.typeURL, it.value = cut(it.typeURL), append([]byte{}, it.value...)
		want.items = append(want.items, it)
	}
	if got := everything(r); !reflect.DeepEqual(got, want) {
		t.Errorf("the client says %+v, the generated decoder %+v", got, want)
	}
}

// everything is the complete content of a response.
func everything(r *response) (out struct {
	typeURL, version, nonce string
	items                   []item
	removed                 []string
	count                   int
}) {
	for batch := make([]item, 0, 3); ; {
		if batch = r.next(batch); len(batch) == 0 {
			break
		}
		for _, it := range batch {
			it.value = append([]byte{}, it.value...) // empty and missing are the same
			out.items = append(out.items, it)
		}
	}
	for name := range r.gone {
		out.removed = append(out.removed, string(name))
	}
	out.typeURL, out.version, out.nonce = r.typeURL, r.version, r.nonce
	out.count = r.count
	return out
}

func TestResponses(t *testing.T) {
	for name, x := range responses(t) {
		t.Run(name, func(t *testing.T) {
			sameResponse(t, x.b, x.delta)
			refused := name == "not UTF-8" || name == "cut off"
			if err := (&response{delta: x.delta}).decode(x.b); (err != nil) != refused {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A response of empty resources only, or of empty names, is refused before memory is allocated for them.
func TestMostResources(t *testing.T) {
	const most = 1 << 16
	field := func(number protowire.Number) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), nil)
	}
	nonce := protowire.AppendString(protowire.AppendTag(nil, fieldNonce, protowire.BytesType), "n")
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	for name, x := range map[string]struct {
		b     []byte
		delta bool
		taken bool
	}{
		"as many as it may have": {bytes.Repeat(field(fieldResource), most), true, true},
		"resources":              {bytes.Repeat(field(fieldResource), most+1), false, false},
		"resources of a delta":   {bytes.Repeat(field(fieldResource), most+1), true, false},
		"names":                  {bytes.Repeat(field(fieldRemoved), most+1), true, false},
		"both together": {append(bytes.Repeat(field(fieldRemoved), most), field(fieldResource)...),
			true, false},
		"after an unknown field": {append(unknown, bytes.Repeat(field(fieldResource), most+1)...), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := append(nonce, x.b...)
			var err error
			made := testing.AllocsPerRun(1, func() { err = (&response{delta: x.delta, most: most}).decode(b) })
			switch {
			case x.taken && err != nil:
				t.Error(err)
			case !x.taken && (err == nil || !strings.Contains(err.Error(), "65537 resources and names")):
				t.Errorf("got %v, want a refusal that counts 65537", err)
			case !x.taken && made > 100:
				t.Errorf("%v allocations for what is refused", made)
			}
		})
	}
}

// FuzzResponse: what the generated decoder accepts, the client accepts with the same content.
func FuzzResponse(f *testing.F) {
	for _, x := range responses(f) {
		f.Add(x.b, x.delta)
	}
	f.Fuzz(func(t *testing.T, b []byte, delta bool) { sameResponse(t, b, delta) })
}
