package xds

import (
	"fmt"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"tare/internal/lib/pace"
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
	begun := pace.Now()
	err := r.decode(data.Materialize())
	r.decoding = time.Duration(pace.Now() - begun)
	return err
}

// decode reads a response, of which r says the variant, and checks all of it: resources are taken out one by one later
// (next). What is common goes through a decoder of its own; whatever that does not know is left to the generated one,
// which alone refuses.
func (r *response) decode(b []byte) error {
	// Counted first: an empty resource is two bytes of a message and far more once it is decoded.
	n := entries(b)
	if r.most > 0 && n > r.most {
		return fmt.Errorf("a response has %d resources and names; the client takes %d", n, r.most)
	}
	if quick, ok := quickResponse(b, r.delta); ok {
		*r = *quick
		r.wire = len(b)
		return r.check()
	}
	if r.most > 0 && n > maxSlow {
		return fmt.Errorf("a response has fields that are not known, and %d resources and names; such a one may have %d",
			n, maxSlow)
	}
	slow, err := slowResponse(b, r.delta)
	if err != nil {
		return err
	}
	*r = *slow
	r.wire = len(b)
	return r.check()
}

// maxSlow is how many resources, and names of removed ones, are left to the generated decoder, which takes some 400
// bytes for each.
const maxSlow = 1 << 15

// maxText bounds the names and versions of resources, and the version and nonce of a response, in bytes: they are kept,
// and sent back.
const maxText = 4 << 10

// check refuses a response that cannot be answered.
func (r *response) check() error {
	for what, text := range map[string]string{"version": r.version, "nonce": r.nonce} {
		if len(text) > maxText {
			return fmt.Errorf("the %s of a response has %d bytes; the client takes %d", what, len(text), maxText)
		}
	}
	return nil
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
		r.typeURL, r.version, r.nonce = m.GetTypeUrl(), m.GetSystemVersionInfo(), m.GetNonce()
		r.removed = m.GetRemovedResources()
		r.items = make([]item, len(m.GetResources()))
		for i, from := range m.GetResources() {
			it := &r.items[i]
			it.typeURL, it.value = from.GetResource().GetTypeUrl(), from.GetResource().GetValue()
			it.name, it.version, it.ttl = cut(from.GetName()), cut(from.GetVersion()), from.GetTtl() != nil
		}
	} else {
		var m discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(b, &m); err != nil {
			return nil, err
		}
		r.typeURL, r.version, r.nonce, r.items = m.GetTypeUrl(), m.GetVersionInfo(), m.GetNonce(), make([]item,
			len(m.GetResources()))
		for i, a := range m.GetResources() {
			r.items[i].typeURL, r.items[i].value = a.GetTypeUrl(), a.GetValue()
		}
	}
	r.count = len(r.items)
	for i := range r.items {
		r.items[i].unwrap(delta)
	}
	return r, nil
}

const wrappedURL = "type.googleapis.com/envoy.service.discovery.v3.Resource"

// maxWrapper bounds what of a wrapper is left to the generated decoder.
const maxWrapper = 64 << 10

// unwrap takes a resource out of the wrapper that carries a time to live.
func (it *item) unwrap(delta bool) {
	if it.typeURL != wrappedURL {
		return
	}
	var in item
	if x := (raw{}); x.resource(it.value) {
		in = x.item()
	} else if m := (&discoveryv3.Resource{}); len(it.value) <= maxWrapper && proto.Unmarshal(it.value, m) == nil {
		in = item{typeURL: m.GetResource().GetTypeUrl(), value: m.GetResource().GetValue(),
			name: cut(m.GetName()), ttl: m.GetTtl() != nil}
	} else {
		return // it is refused for its type
	}
	it.typeURL, it.value = in.typeURL, in.value
	if it.ttl = it.ttl || in.ttl; !delta { // there the name is beside the resource
		it.name = in.name
	}
}

// The numbers of fields. Version, type and nonce have the same in both variants.
const (
	fieldVersion      = 1
	fieldResource     = 2
	fieldCanary       = 3 // state of the world
	fieldType         = 4
	fieldNonce        = 5
	fieldRemoved      = 6 // deltas
	fieldPlaneOfWorld = 6
	fieldPlaneOfDelta = 7

	resourceVersion = 1
	resourceAny     = 2
	resourceName    = 3
	resourceAliases = 4
	resourceTTL     = 6
	resourceCache   = 7

	anyType  = 1
	anyValue = 2
)

// quickResponse decodes what is common: it says no to whatever it does not know, and to what comes twice though it may
// be there only once. What it takes, it takes as slowResponse does; the values of resources are parts of b.
func quickResponse(b []byte, delta bool) (r *response, ok bool) {
	r = &response{delta: delta, message: b, left: b}
	var version, kind, nonce []byte
	for len(b) > 0 {
		number, value, rest, ok := nextField(b)
		if !ok {
			if delta || b[0] != fieldCanary<<3|byte(protowire.VarintType) {
				return nil, false
			}
			_, n := protowire.ConsumeVarint(b[1:])
			if n < 0 {
				return nil, false
			}
			b = b[1+n:]
			continue
		}
		b = rest
		switch {
		case number == fieldVersion:
			ok = once(&version, value)
		case number == fieldType:
			ok = once(&kind, value)
		case number == fieldNonce:
			ok = once(&nonce, value)
		case delta && number == fieldRemoved:
			ok = utf8.Valid(value)
		case delta && number == fieldPlaneOfDelta, !delta && number == fieldPlaneOfWorld:
			ok = decodes(value, &corev3.ControlPlane{})
		case number == fieldResource:
			var x raw
			if delta {
				ok = x.resource(value)
			} else {
				ok = x.any(value)
			}
			r.count++
		default:
			ok = false
		}
		if !ok {
			return nil, false
		}
	}
	r.version, r.typeURL, r.nonce = string(version), urlOf(kind), string(nonce)
	return r, true
}

// maxBatch is how many bytes the resources have that next gives at a time, but for the last of them.
const maxBatch = 1 << 20

// next puts the next resources into the room that batch has, and none when all have been given.
func (r *response) next(batch []item) []item {
	batch = batch[:0]
	bytes := 0
	add := func(it item) {
		bytes += len(it.value)
		batch = append(batch, it)
	}
	for len(r.items) > 0 && len(batch) < cap(batch) && bytes < maxBatch {
		add(r.items[0])
		r.items = r.items[1:]
	}
	for len(r.left) > 0 && len(batch) < cap(batch) && bytes < maxBatch {
		number, value, rest, ok := nextField(r.left)
		if !ok { // the one field without a length
			_, n := protowire.ConsumeVarint(r.left[1:])
			r.left = r.left[1+n:]
			continue
		}
		if r.left = rest; number != fieldResource {
			continue
		}
		var x raw
		if r.delta {
			x.resource(value)
		} else {
			x.any(value)
		}
		it := x.item()
		it.unwrap(r.delta)
		add(it)
	}
	return batch
}

// gone are the names of removed resources.
func (r *response) gone(yield func(name []byte) bool) {
	for _, name := range r.removed {
		if !yield([]byte(name)) {
			return
		}
	}
	if !r.delta {
		return
	}
	for b := r.message; len(b) > 0; {
		number, value, rest, _ := nextField(b)
		if b = rest; number == fieldRemoved && !yield(value) {
			return
		}
	}
}

// raw is a resource as parts of the message.
type raw struct {
	typeURL, value, name, version []byte
	some                          bool // there is a resource in it
	ttl                           bool
}

func (x *raw) item() item {
	return item{typeURL: urlOf(x.typeURL), value: x.value, name: string(cut(x.name)), version: string(cut(x.version)),
		ttl: x.ttl}
}

// cut keeps of a name or version what is enough for it to be refused: one byte too many.
func cut[T string | []byte](text T) T { return text[:min(len(text), maxText+1)] }

func (x *raw) resource(b []byte) bool {
	for len(b) > 0 {
		number, value, rest, ok := nextField(b)
		if !ok {
			return false
		}
		b = rest
		switch number {
		case resourceName:
			ok = once(&x.name, value)
		case resourceVersion:
			ok = once(&x.version, value)
		case resourceAny:
			ok = !x.some && x.any(value)
			x.some = true
		case resourceAliases:
			ok = utf8.Valid(value)
		case resourceTTL:
			ok = decodes(value, &durationpb.Duration{})
			x.ttl = true
		case resourceCache:
			ok = decodes(value, &discoveryv3.Resource_CacheControl{})
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

func (x *raw) any(b []byte) bool {
	for len(b) > 0 {
		number, value, rest, ok := nextField(b)
		if !ok {
			return false
		}
		b = rest
		switch number {
		case anyType:
			ok = once(&x.typeURL, value)
		case anyValue:
			ok = x.value == nil
			x.value = value
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return true
}

// decodes says whether the generated decoder takes b, which is short, as such a message.
func decodes(b []byte, m proto.Message) bool {
	return len(b) <= maxText && proto.Unmarshal(b, m) == nil
}

// once takes text, if there was none.
func once(to *[]byte, b []byte) bool {
	if len(*to) > 0 || !utf8.Valid(b) {
		return false
	}
	*to = b
	return true
}

// urlOf is the type of a resource, which is most often one of a few.
func urlOf(b []byte) string {
	for _, url := range typeURLs {
		if string(b) == url {
			return url
		}
	}
	if len(b) == len(wrappedURL) && string(b) == wrappedURL {
		return wrappedURL
	}
	return string(cut(b))
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
