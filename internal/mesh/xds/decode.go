package xds

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"tare/internal/lib/pace"
	"tare/internal/mesh/xds/translate"
)

// codec is gRPC's codec for messages, except that it decodes responses into the client's type response, whose resources
// are slices of the message. The generated decoder would copy each resource with its name, type and version.
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

// decode decodes a response of the variant set in r, and checks all of it. It allocates nothing for resources, because
// a message can hold millions of them: an empty one takes only two bytes. response.next returns the resources later, in
// batches. Fields that the client does not use are skipped.
func (r *response) decode(b []byte) error {
	r.wire, r.message, r.left = len(b), b, b
	var version, kind, nonce []byte
	removed := 0
	err := translate.Fields(b, func(f translate.Field) error {
		switch {
		case f.Type != protowire.BytesType:
		case f.Number == fieldVersion:
			return takeText(&version, f)
		case f.Number == fieldType:
			return takeText(&kind, f)
		case f.Number == fieldNonce:
			return takeText(&nonce, f)
		case f.Number == fieldResource:
			r.count++
			return new(raw).read(f.Bytes, r.delta)
		case r.delta && f.Number == fieldRemoved:
			removed++
			return takeText(new([]byte), f)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("a response cannot be decoded: %w", err)
	}
	if n := r.count + removed; r.most > 0 && n > r.most {
		return fmt.Errorf("a response has %d resources and names; the client takes %d", n, r.most)
	}
	r.version, r.typeURL, r.nonce = string(version), urlOf(kind), string(nonce)
	return r.check()
}

// maxText bounds the names and versions of resources, and the version and nonce of a response, in bytes. The client
// keeps these texts and sends them back.
const maxText = 4 << 10

// check refuses a response that the client could not answer.
func (r *response) check() error {
	for what, text := range map[string]string{"version": r.version, "nonce": r.nonce} {
		if len(text) > maxText {
			return fmt.Errorf("the %s of a response has %d bytes; the client takes %d", what, len(text), maxText)
		}
	}
	return nil
}

const wrappedURL = "type.googleapis.com/envoy.service.discovery.v3.Resource"

// unwrap removes the wrapper of a resource that carries a time to live.
func (it *item) unwrap(delta bool) {
	var x raw
	if it.typeURL != wrappedURL || x.resource(it.value) != nil { // an invalid wrapper is refused later, by its type
		return
	}
	in := x.item()
	it.typeURL, it.value = in.typeURL, in.value
	if it.ttl = it.ttl || in.ttl; !delta { // with deltas the name is outside the wrapper
		it.name = in.name
	}
}

// Field numbers. They are the same in both variants of the protocol.
const (
	fieldVersion  = 1
	fieldResource = 2
	fieldType     = 4
	fieldNonce    = 5
	fieldRemoved  = 6 // only in deltas

	resourceVersion = 1
	resourceAny     = 2
	resourceName    = 3
	resourceTTL     = 6

	anyType  = 1
	anyValue = 2
)

// maxBatch bounds the bytes of the resources that one call of response.next returns, not counting the last resource.
const maxBatch = 1 << 20

// next fills batch with the next resources and returns it. It returns an empty batch when there are no more.
func (r *response) next(batch []item) []item {
	batch = batch[:0]
	for bytes := 0; len(r.left) > 0 && len(batch) < cap(batch) && bytes < maxBatch; {
		f, rest, _ := translate.NextField(r.left) // cannot fail: decode has checked it
		if r.left = rest; !f.Is(fieldResource, protowire.BytesType) {
			continue
		}
		var x raw
		_ = x.read(f.Bytes, r.delta)
		it := x.item()
		it.unwrap(r.delta)
		bytes += len(it.value)
		batch = append(batch, it)
	}
	return batch
}

// gone iterates over the names of removed resources.
func (r *response) gone(yield func(name []byte) bool) {
	for b := r.message; r.delta && len(b) > 0; {
		f, rest, _ := translate.NextField(b)
		if b = rest; f.Is(fieldRemoved, protowire.BytesType) && !yield(f.Bytes) {
			return
		}
	}
}

// raw is a resource as slices of the message. As in the generated decoder, the last occurrence of a field counts, and
// repeated messages are merged.
type raw struct {
	typeURL, value, name, version []byte
	ttl                           bool
}

func (x *raw) item() item {
	return item{typeURL: urlOf(x.typeURL), value: x.value, name: string(cut(x.name)), version: string(cut(x.version)),
		ttl: x.ttl}
}

// cut truncates a name or version to one byte more than the maximum, so that the client still refuses it.
func cut(text []byte) []byte { return text[:min(len(text), maxText+1)] }

// read decodes a resource of either variant.
func (x *raw) read(b []byte, delta bool) error {
	if delta {
		return x.resource(b)
	}
	return x.any(b)
}

func (x *raw) resource(b []byte) error {
	return translate.Fields(b, func(f translate.Field) error {
		switch {
		case f.Type != protowire.BytesType:
		case f.Number == resourceName:
			return takeText(&x.name, f)
		case f.Number == resourceVersion:
			return takeText(&x.version, f)
		case f.Number == resourceAny:
			return x.any(f.Bytes)
		case f.Number == resourceTTL:
			x.ttl = true
		}
		return nil
	})
}

func (x *raw) any(b []byte) error {
	return translate.Fields(b, func(f translate.Field) error {
		switch {
		case f.Is(anyType, protowire.BytesType):
			return takeText(&x.typeURL, f)
		case f.Is(anyValue, protowire.BytesType):
			x.value = f.Bytes
		}
		return nil
	})
}

// takeText stores the value of a string field, which must be UTF-8.
func takeText(to *[]byte, f translate.Field) error {
	if !utf8.Valid(f.Bytes) {
		return errors.New("a string is not UTF-8")
	}
	*to = f.Bytes
	return nil
}

// urlOf returns the type of a resource. It does not allocate memory for a known type.
func urlOf(b []byte) string {
	for _, url := range typeURLs {
		if string(b) == url {
			return url
		}
	}
	if string(b) == wrappedURL {
		return wrappedURL
	}
	return string(cut(b))
}
