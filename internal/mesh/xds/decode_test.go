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

// wrapped is a resource in the wrapper that carries a time to live.
func wrapped(t testing.TB, m *discoveryv3.Resource) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// responses are messages of both variants, as bytes, and whether the quick decoder takes them.
func responses(t testing.TB) map[string]struct {
	b            []byte
	delta, quick bool
} {
	one, two := &anypb.Any{TypeUrl: Clusters.TypeURL(), Value: []byte("one")}, &anypb.Any{TypeUrl: "other",
		Value: []byte{}}
	out := map[string]struct {
		b            []byte
		delta, quick bool
	}{}
	add := func(name string, m proto.Message, quick bool, more ...byte) {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		_, delta := m.(*discoveryv3.DeltaDiscoveryResponse)
		out[name] = struct {
			b            []byte
			delta, quick bool
		}{append(b, more...), delta, quick}
	}
	delta := func(r ...*discoveryv3.Resource) *discoveryv3.DeltaDiscoveryResponse {
		return &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "v", TypeUrl: Endpoints.TypeURL(), Nonce: "n",
			Resources: r}
	}
	add("world", &discoveryv3.DiscoveryResponse{VersionInfo: "v", TypeUrl: Clusters.TypeURL(), Nonce: "n",
		Resources: []*anypb.Any{one, two}}, true)
	add("world, empty", &discoveryv3.DiscoveryResponse{}, true)
	add("world, wrapped", &discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{wrapped(t,
		&discoveryv3.Resource{Name: "w", Resource: one, Ttl: durationpb.New(1)})}}, true)
	add("world, of a control plane", &discoveryv3.DiscoveryResponse{ControlPlane: &corev3.ControlPlane{Identifier: "x"},
		Resources: []*anypb.Any{one}}, true)
	add("world, canary", &discoveryv3.DiscoveryResponse{Canary: true, Resources: []*anypb.Any{one}}, true)
	add("world, errors", &discoveryv3.DiscoveryResponse{ResourceErrors: []*discoveryv3.ResourceError{{}}}, false)
	add("deltas", delta(&discoveryv3.Resource{Name: "a", Version: "1", Resource: one},
		&discoveryv3.Resource{Name: "b", Resource: two}), true)
	removed := delta()
	removed.RemovedResources = []string{"x", "", "y"}
	add("deltas, removed", removed, true)
	add("deltas, without a resource", delta(&discoveryv3.Resource{Name: "a"}), true)
	add("deltas, wrapped", delta(&discoveryv3.Resource{Name: "a",
		Resource: wrapped(t, &discoveryv3.Resource{Name: "w", Resource: one, Ttl: durationpb.New(1)})}), true)
	add("deltas, time to live", delta(&discoveryv3.Resource{Name: "a", Resource: one, Ttl: durationpb.New(1)}), true)
	add("deltas, aliases", delta(&discoveryv3.Resource{Name: "a", Resource: one, Aliases: []string{"b"}}), true)
	add("deltas, not to be cached", delta(&discoveryv3.Resource{Resource: one,
		CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true}}), true)
	add("deltas, by parameters", delta(&discoveryv3.Resource{ResourceName: &discoveryv3.ResourceName{Name: "a"},
		Resource: one}), false)
	of := delta(&discoveryv3.Resource{Name: "a", Resource: one})
	of.ControlPlane = &corev3.ControlPlane{Identifier: "x"}
	add("deltas, of a control plane", of, true)
	add("nonce twice", delta(), false, append(protowire.AppendTag(nil, fieldNonce, protowire.BytesType), 1, 'm')...)
	add("not UTF-8", delta(), false, append(protowire.AppendTag(nil, fieldRemoved, protowire.BytesType), 1, 0xff)...)
	add("cut off", delta(), false, protowire.AppendTag(nil, fieldNonce, protowire.BytesType)...)
	// A resource in two parts is merged.
	half := protowire.AppendBytes(protowire.AppendTag(nil, resourceAny, protowire.BytesType),
		protowire.AppendString(protowire.AppendTag(nil, anyType, protowire.BytesType), "t"))
	half = protowire.AppendBytes(protowire.AppendTag(half, resourceAny, protowire.BytesType),
		protowire.AppendString(protowire.AppendTag(nil, anyValue, protowire.BytesType), "v"))
	add("in two parts", delta(), false, protowire.AppendBytes(protowire.AppendTag(nil, fieldResource, protowire.BytesType),
		half)...)
	return out
}

// sameResponse holds what one decoder makes of bytes against what the other does.
func sameResponse(t *testing.T, b []byte, delta bool) (quick bool) {
	t.Helper()
	got, quick := quickResponse(b, delta)
	want, err := slowResponse(b, delta)
	if !quick {
		return false
	}
	if err != nil {
		t.Fatalf("the quick decoder takes what is none: %v", err)
	}
	if a, b := everything(got), everything(want); !reflect.DeepEqual(a, b) {
		t.Errorf("the quick decoder says %+v, the generated one %+v", a, b)
	}
	return true
}

// everything is all of a response.
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
			it.value = append([]byte{}, it.value...) // empty or not there is the same
			out.items = append(out.items, it)
		}
	}
	for name := range r.gone {
		out.removed = append(out.removed, string(name))
	}
	out.typeURL, out.version, out.nonce = cut(r.typeURL), r.version, r.nonce
	out.count = r.count
	return out
}

func TestResponses(t *testing.T) {
	for name, x := range responses(t) {
		t.Run(name, func(t *testing.T) {
			if quick := sameResponse(t, x.b, x.delta); quick != x.quick {
				t.Errorf("the quick decoder takes it: %v", quick)
			}
			r := &response{delta: x.delta}
			want, wrong := slowResponse(x.b, x.delta)
			if err := r.decode(x.b); (err == nil) != (wrong == nil) ||
				err == nil && (r.nonce != want.nonce || r.count != want.count) {
				t.Errorf("%+v, %v; the generated decoder: %+v, %v", r, err, want, wrong)
			}
		})
	}
}

// A response of nothing but empty resources, or of empty names, is refused before room is made for them.
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
		"for the generated decoder": {append(unknown, bytes.Repeat(field(fieldResource), most+1)...), true, false},
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

// Maps are made for what may be kept, however much a response has.
func TestRoom(t *testing.T) {
	s := newState(Limits{Resources: 10})
	if got := s.room(&response{count: 1000}); got != 10 {
		t.Errorf("room for %d resources, want 10", got)
	}
}

// FuzzResponse: whatever the quick decoder takes, it takes as the generated one does.
func FuzzResponse(f *testing.F) {
	for _, x := range responses(f) {
		f.Add(x.b, x.delta)
	}
	f.Fuzz(func(t *testing.T, b []byte, delta bool) { sameResponse(t, b, delta) })
}
