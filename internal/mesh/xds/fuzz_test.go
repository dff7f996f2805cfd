package xds

import (
	"bytes"
	"errors"
	"io"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	"tare/internal/mesh"
)

// FuzzConversation: whatever messages arrive in whatever order, the memory that is kept stays within its limits, and
// is counted correctly.
func FuzzConversation(f *testing.F) {
	conversation := func(messages ...proto.Message) []byte {
		var all [][]byte
		for _, m := range messages {
			b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			all = append(all, b)
		}
		return bytes.Join(all, separator)
	}
	one := func(k Kind, name string, m proto.Message) *discoveryv3.DeltaDiscoveryResponse {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		it := wrapped(f, &discoveryv3.Resource{})
		it.TypeUrl, it.Value = k.TypeURL(), b
		return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: k.TypeURL(), Nonce: "n",
			Resources: []*discoveryv3.Resource{{Name: name, Version: "1", Resource: it}}}
	}
	gone := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: Clusters.TypeURL(), RemovedResources: []string{"a"}}
	a := &clusterv3.Cluster{Name: "a", LoadAssignment: endpoints("a", 1)}
	f.Add(conversation(one(Clusters, "a", a), one(Listeners, "l", tcpListener("l", 80, "a")),
		one(Listeners, "m", tcpListener("m", 80, "a")), gone), true)
	f.Add(conversation(one(Clusters, "b", edsCluster("b")), one(Endpoints, "b", endpoints("b", 1, 2)),
		one(Listeners, "l", tcpListener("l", 80, "b"))), true)
	f.Add(conversation(&discoveryv3.DiscoveryResponse{TypeUrl: Clusters.TypeURL()}), false)
	limits := Limits{Message: 1 << 20, Resource: 1 << 16, Resources: 4, Bytes: 1 << 14}
	f.Fuzz(func(t *testing.T, b []byte, delta bool) {
		s := newState(limits)
		for _, m := range bytes.Split(b, separator) {
			r := &response{delta: delta, most: limits.entries()}
			if r.decode(m) != nil {
				continue
			}
			k, ok := KindOf(r.typeURL)
			if !ok {
				continue
			}
			o := s.take(k, r, !delta)
			if err := s.settle(func(mesh.Change) error { return nil }, o); err != nil {
				t.Fatal(err)
			}
			s.sweep()
			reason(sorted(o.refused), o.more)
			total := 0
			for k := range s.taken {
				for _, x := range s.taken[k] {
					total += x.cost
				}
				if n := len(s.taken[k]); n > limits.Resources {
					t.Errorf("%d %s are kept", n, Kind(k))
				}
			}
			if total != s.bytes || total > limits.Bytes {
				t.Errorf("%d bytes are kept, %d are counted", total, s.bytes)
			}
		}
	})
}

// separator separates the messages of a conversation.
var separator = []byte("\xff\xff")

// FuzzFrames: the parsing of frames does not depend on how they are split into reads.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	w := http2.NewFramer(&b, nil)
	_ = w.WriteSettings()
	_ = w.WriteData(1, false, []byte{0, 0, 0, 0, 3, 1, 2, 3, 0, 0})
	_ = w.WriteDataPadded(1, false, []byte{0, 0, 1}, []byte{0, 0})
	f.Add(b.Bytes(), 3)
	f.Fuzz(func(t *testing.T, b []byte, most int) {
		whole := &frames{Conn: pipe{Reader: bytes.NewReader(b)}}
		parts := &frames{Conn: pipe{Reader: bytes.NewReader(b)}}
		got, err := io.ReadAll(whole)
		read, size := 0, max(1, min(most, 1<<10))
		var also error
		for also == nil {
			var n int
			n, also = parts.Read(make([]byte, size))
			read += n
		}
		if err == nil && !errors.Is(also, errPieces) && (len(got) != len(b) || read != len(b) || whole.left != parts.left ||
			whole.message != parts.message || whole.pieces != parts.pieces) {
			t.Errorf("%d and %d of %d bytes are read; %d and %d are left of a frame", len(got), read, len(b), whole.left,
				parts.left)
		}
		if whole.left < 0 || whole.message < 0 {
			t.Errorf("%d bytes are left of a frame, %d of a message", whole.left, whole.message)
		}
	})
}
