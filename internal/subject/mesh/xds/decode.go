package xds

import (
	"fmt"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec is gRPC's own for messages, but that it reads responses as what the client works with: their resources stay
// where they are in the message. The generated decoder would copy each, and its name, type and version.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*response)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	return r.decode(data.Materialize())
}

// decode reads a response, of which r says the variant. What is common goes through a decoder of its own; whatever that
// does not know is left to the generated one, which alone refuses.
func (r *response) decode(b []byte) error {
	if quick, ok := quickResponse(b, r.delta, r.most); ok {
		*r = *quick
		return nil
	}
	// Counted first: an empty resource is two bytes of a message and far more once it is decoded.
	if n := entries(b); r.most > 0 && n > r.most {
		return fmt.Errorf("a response has %d resources and names; the client takes %d", n, r.most)
	}
	slow, err := slowResponse(b, r.delta)
	if err == nil {
		*r = *slow
	}
	return err
}

// entries is how many resources, and names of removed ones, a response has before the first thing in it that cannot be
// decoded.
func entries(b []byte) (n int) {
	for len(b) > 0 {
		number, _, size := protowire.ConsumeField(b)
		if size < 0 {
			return n
		}
		if number == fieldResource || number == fieldRemoved {
			n++
		}
		b = b[size:]
	}
	return n
}

// slowResponse is the reference, by the generated decoder.
func slowResponse(b []byte, delta bool) (*response, error) {
	r := &response{delta: delta}
	if delta {
		var m discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(b, &m); err != nil {
			return nil, err
		}
		r.typeURL, r.version, r.nonce, r.removed = m.GetTypeUrl(), m.GetSystemVersionInfo(), m.GetNonce(), m.GetRemovedResources()
		r.items = make([]item, len(m.GetResources()))
		for i, from := range m.GetResources() {
			it := &r.items[i]
			it.typeURL, it.value = from.GetResource().GetTypeUrl(), from.GetResource().GetValue()
			it.name, it.version, it.ttl = from.GetName(), from.GetVersion(), from.GetTtl() != nil
		}
	} else {
		var m discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(b, &m); err != nil {
			return nil, err
		}
		r.typeURL, r.version, r.nonce, r.items = m.GetTypeUrl(), m.GetVersionInfo(), m.GetNonce(), make([]item, len(m.GetResources()))
		for i, a := range m.GetResources() {
			r.items[i].typeURL, r.items[i].value = a.GetTypeUrl(), a.GetValue()
		}
	}
	r.finish()
	return r, nil
}

const wrappedURL = "type.googleapis.com/envoy.service.discovery.v3.Resource"

// finish takes resources out of the wrapper that carries a time to live, and counts bytes.
func (r *response) finish() {
	for i := range r.items {
		it := &r.items[i]
		var m discoveryv3.Resource
		if it.typeURL == wrappedURL && proto.Unmarshal(it.value, &m) == nil {
			it.typeURL, it.value = m.GetResource().GetTypeUrl(), m.GetResource().GetValue()
			if it.ttl = it.ttl || m.GetTtl() != nil; !r.delta { // there the name is beside the resource
				it.name = m.GetName()
			}
		}
		r.bytes += len(it.value)
	}
}

// The numbers of fields. Version, type and nonce have the same in both variants.
const (
	fieldVersion  = 1
	fieldResource = 2
	fieldType     = 4
	fieldNonce    = 5
	fieldRemoved  = 6 // deltas

	resourceVersion = 1
	resourceAny     = 2
	resourceName    = 3

	anyType  = 1
	anyValue = 2
)

// quickResponse decodes what is common: it says no to whatever it does not know, and to what comes twice though it may
// be there only once, and to more than most resources and names of removed ones (0: any number). What it takes, it
// takes as slowResponse does; the values of resources are parts of b.
func quickResponse(b []byte, delta bool, most int) (r *response, ok bool) {
	r = &response{delta: delta}
	n, names := 0, 0
	for rest := b; len(rest) > 0; {
		number, _, after, ok := nextField(rest)
		if !ok {
			return nil, false
		}
		switch rest = after; number {
		case fieldResource:
			n++
		case fieldRemoved:
			names++
		}
	}
	if most > 0 && n+names > most {
		return nil, false
	}
	r.items = make([]item, n)
	n = 0
	for len(b) > 0 {
		number, value, rest, _ := nextField(b)
		b = rest
		switch number {
		case fieldVersion:
			ok = take(&r.version, value)
		case fieldType:
			ok = takeURL(&r.typeURL, value)
		case fieldNonce:
			ok = take(&r.nonce, value)
		case fieldRemoved:
			if ok = delta && utf8.Valid(value); ok {
				r.removed = append(r.removed, string(value))
			}
		case fieldResource:
			if delta {
				ok = r.items[n].quickResource(value)
			} else {
				ok = r.items[n].quickAny(value)
			}
			n++
		default:
			ok = false
		}
		if !ok {
			return nil, false
		}
	}
	r.finish()
	return r, true
}

func (it *item) quickResource(b []byte) bool {
	for some := false; len(b) > 0; {
		number, value, rest, ok := nextField(b)
		if !ok {
			return false
		}
		b = rest
		switch number {
		case resourceName:
			ok = take(&it.name, value)
		case resourceVersion:
			ok = take(&it.version, value)
		case resourceAny:
			ok = !some && it.quickAny(value)
			some = true
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

func (it *item) quickAny(b []byte) bool {
	for len(b) > 0 {
		number, value, rest, ok := nextField(b)
		if !ok {
			return false
		}
		b = rest
		switch number {
		case anyType:
			ok = takeURL(&it.typeURL, value)
		case anyValue:
			ok = it.value == nil
			it.value = value
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// take makes a string of b, once.
func take(to *string, b []byte) bool {
	if *to != "" || !utf8.Valid(b) {
		return false
	}
	*to = string(b)
	return true
}

// takeURL is take for the type of a resource, which is most often the same.
func takeURL(to *string, b []byte) bool {
	for _, url := range typeURLs {
		if *to == "" && string(b) == url {
			*to = url
			return true
		}
	}
	return take(to, b)
}

// nextField takes one field with a length off b. All other types are for the generated decoder.
func nextField(b []byte) (number protowire.Number, value, rest []byte, ok bool) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 || kind != protowire.BytesType {
		return 0, nil, nil, false
	}
	value, m := protowire.ConsumeBytes(b[n:])
	if m < 0 {
		return 0, nil, nil, false
	}
	return number, value, b[n+m:], true
}
