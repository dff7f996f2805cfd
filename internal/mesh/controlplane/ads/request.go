package ads

import (
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// Limits on what a data plane can make the server keep, or process at once.
const (
	MaxRequest = 16 << 20 // bytes of a request

	maxNode  = 1 << 20 // bytes of a node; Envoy's, which lists its extensions, has about 30 KB
	maxID    = 1024    // bytes of the node's id
	maxNames = 1 << 17 // names of one type, in a request and in all requests together
	maxName  = 4096    // bytes of a name
	maxTypes = 32      // types on a stream
	maxWrong = 2 << 20 // bytes of the reason of a refusal; the rest is cut off
)

// request is a request of either variant, with the fields that the server uses.
type request struct {
	delta bool

	id      string // of the node
	url     string
	nonce   string
	version string            // state of the world: the last version that the data plane has accepted
	names   []string          // state of the world: all that the data plane subscribes to; deltas: those to add
	drop    []string          // deltas: to unsubscribe from
	known   map[string]string // deltas: the versions that the data plane has, by name
	refused bool              // the data plane refuses the response with this nonce
	wrong   string            // the reason of the refusal; may be empty

	node int   // bytes of the node
	size int   // bytes received
	err  error // a gRPC status, if the request is malformed or too large
}

// Codec is gRPC's codec for messages, extended for the requests and responses of this package. A gRPC server with a
// Server must use it: grpc.ForceServerCodecV2(ads.Codec()).
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	var pool mem.BufferPool = mem.DefaultBufferPool()
	if data.Len() >= largeMessage {
		pool = mem.NopBufferPool{} // the default pool would keep such a large buffer for a while
		decodesLarge.Lock()
		defer decodesLarge.Unlock()
	}
	r, ok := v.(*request)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	b := data.MaterializeToBuffer(pool)
	defer b.Free()
	r.size, r.err = b.Len(), r.parse(b.ReadOnlyData())
	return nil
}

// Marshal implements encoding.CodecV2. The bytes of resources are not copied.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*response); ok {
		return r.parts, nil
	}
	return c.CodecV2.Marshal(v)
}

// field is the meaning of a field number in a request.
type field int

const (
	other field = iota
	nodeField
	urlField
	nonceField
	versionField
	namesField
	dropField
	knownField
	errorField
)

// fields maps field numbers to their meanings, for DiscoveryRequest (false) and DeltaDiscoveryRequest (true) of
// discovery.proto.
var fields = map[bool][8]field{
	false: {1: versionField, 2: nodeField, 3: namesField, 4: urlField, 5: nonceField, 6: errorField},
	true:  {1: nodeField, 2: urlField, 3: namesField, 4: dropField, 5: knownField, 6: nonceField, 7: errorField},
}

var errMalformed = status.Error(codes.InvalidArgument, "the request is malformed")

func tooMuch(what string, most int) error {
	return status.Errorf(codes.ResourceExhausted, "the request has more than %d %s", most, what)
}

// parse parses a request. The generated decoder would allocate the whole node each time, and all names before they
// could be counted.
func (r *request) parse(b []byte) error {
	meanings := fields[r.delta]
	return each(b, func(number protowire.Number, value []byte) error {
		if int(number) >= len(meanings) {
			return nil
		}
		return r.take(meanings[number], value)
	})
}

func (r *request) take(f field, value []byte) error {
	switch f {
	case nodeField: // several node fields are parts of one message
		if r.node += len(value); r.node > maxNode {
			return tooMuch("bytes of a node", maxNode)
		}
		return r.takeNode(value)
	case urlField:
		return text(&r.url, value)
	case nonceField:
		return text(&r.nonce, value)
	case versionField:
		return text(&r.version, value)
	case namesField:
		return name(&r.names, value)
	case dropField:
		return name(&r.drop, value)
	case knownField:
		return r.takeKnown(value)
	case errorField:
		r.refused = true
		return r.takeError(value)
	}
	return nil
}

// takeNode parses the id of a node and skips the rest. A node may have a megabyte of metadata, which the generated
// decoder would expand a hundredfold.
func (r *request) takeNode(b []byte) error {
	return each(b, func(number protowire.Number, value []byte) error {
		if number != 1 {
			return nil
		}
		if len(value) > maxID {
			return tooMuch("bytes of a node's id", maxID)
		}
		return text(&r.id, value)
	})
}

// takeKnown parses an entry of a map: a name and its version.
func (r *request) takeKnown(b []byte) error {
	var key, version string
	err := each(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			return text(&key, value)
		case 2:
			return text(&version, value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if r.known == nil {
		r.known = map[string]string{}
	}
	if r.known[key] = version; len(r.known) > maxNames {
		return tooMuch("versions", maxNames)
	}
	return nil
}

// takeError parses the message of a google.rpc.Status, which may be long.
func (r *request) takeError(b []byte) error {
	return each(b, func(number protowire.Number, value []byte) error {
		if number == 2 {
			if !utf8.Valid(value) {
				return errMalformed
			}
			r.wrong = strings.ToValidUTF8(string(value[:min(len(value), maxWrong)]), "")
		}
		return nil
	})
}

// each calls do for the length-delimited fields of a message, and skips all others.
func each(b []byte, do func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		m := protowire.ConsumeFieldValue(number, kind, b[n:])
		if m < 0 {
			return errMalformed
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[n:])
			if err := do(number, value); err != nil {
				return err
			}
		}
		b = b[n+m:]
	}
	return nil
}

func text(to *string, value []byte) error {
	if len(value) > maxName {
		return tooMuch("bytes of a name", maxName)
	}
	if !utf8.Valid(value) {
		return errMalformed
	}
	*to = string(value)
	return nil
}

func name(to *[]string, value []byte) error {
	if len(*to) == maxNames {
		return tooMuch("names", maxNames)
	}
	var s string
	err := text(&s, value)
	*to = append(*to, s)
	return err
}

// stubs returns a table of the resources that a data plane claims to have, with name and version only.
func (r *request) stubs() *Table {
	list := make([]*Resource, 0, len(r.known))
	for name, version := range r.known {
		list = append(list, &Resource{name: name, version: version})
	}
	slices.SortFunc(list, byName)
	return newTable(nil, list)
}

// stubAround is the overhead of a stub in bytes.
const stubAround = 128

// sizeOf returns the bytes that stubs take.
func sizeOf(stubs []*Resource) (bytes int64) {
	for _, r := range stubs {
		bytes += int64(len(r.name)+len(r.version)) + stubAround
	}
	return bytes
}
