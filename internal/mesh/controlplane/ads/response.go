package ads

import (
	"google.golang.org/grpc/mem"
)

// response is a state-of-the-world or a delta response. parts is its encoding, and shares the buffers of resources with
// other responses.
type response struct {
	*flight
	sub                *subscription
	version            string
	resources, removed int
	parts              mem.BufferSlice
}

// encode makes the parts. version is version_info in the state of the world, system_version_info in deltas.
func (r *response) encode(delta bool, version string, resources []*Resource, removed []string) {
	r.resources, r.removed = len(resources), len(removed)
	var b []byte
	if version != "" {
		b = appendString(b, fieldVersion, version)
	}
	b = appendString(b, fieldType, r.sub.url)
	b = appendString(b, fieldNonce, r.nonce)
	for _, name := range removed {
		b = appendString(b, fieldRemoved, name)
	}
	r.parts = make(mem.BufferSlice, 0, len(resources)+1)
	r.parts = append(r.parts, mem.SliceBuffer(b))
	for _, x := range resources {
		if delta {
			r.parts = append(r.parts, x.delta)
		} else {
			r.parts = append(r.parts, x.world)
		}
	}
}
