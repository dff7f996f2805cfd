package translate

import (
	"math"
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const (
	// MaxDecoded is the maximum memory in bytes, as counted by Weigh, of a resource that the generated decoder has
	// decoded. In a mesh of 10,000 services, the largest resources are the routes, which take half of it.
	MaxDecoded = 48 << 20
	// MaxNesting is the maximum depth of nested messages in a resource, including those in Any fields. Envoy also accepts
	// 100 levels, the limit of protobuf in C++.
	MaxNesting = 100
)

// Weigh returns an upper bound of the memory in bytes that a message of a type takes when decoded, including the
// contents of Any fields. It reads only the wire format, and stops once it has counted more than MaxDecoded. Unknown
// types and undecodable parts count by their length.
func Weigh(typeURL string, b []byte) (bytes int, err error) {
	n := weighAny(typeURL, b, 0)
	switch {
	case n == tooDeep:
		return n, refuse("messages are nested more than %d deep", MaxNesting)
	case n > MaxDecoded:
		return n, refuse("decoding its %d bytes would take more than %d MiB", len(b), MaxDecoded>>20)
	}
	return n, nil
}

// PatternSize returns the maximum number of instructions to which a regular expression of the given length in bytes may
// compile. Weigh counts 40 bytes for each of them.
func PatternSize(bytes int) int { return 256 + 16*bytes }

// pattern is the message type of a regular expression, patternField the field with the expression, and perInstruction
// the size of a compiled instruction in bytes.
const (
	pattern        = "envoy.type.matcher.v3.RegexMatcher"
	patternField   = 2
	perInstruction = 40
)

// tooDeep is a weight above all others, for messages that are nested too deep.
const tooDeep = math.MaxInt32

// Overhead in the Go runtime, in bytes.
const (
	perPointer = 8   // for a message in a list
	perString  = 24  // for a string or bytes in a list, with the allocation
	perOneof   = 32  // for the wrapper of a oneof field
	perEntry   = 128 // for an entry of a map
	perMessage = 16  // for rounding the size of a message up
)

// layout describes a message type, for Weigh.
type layout struct {
	size   int // bytes of the struct
	fields map[protowire.Number]layoutField
	any    bool // google.protobuf.Any, whose content is weighed as well
	regex  bool // the type pattern, whose expression is compiled
}

type layoutField struct {
	message *layout // nil: not a message
	each    int     // bytes that each value adds, besides its length or its message
	packed  int     // bytes for each byte of a packed list of numbers
}

var (
	layouts     = map[protoreflect.FullName]*layout{}
	layoutsLock sync.RWMutex
)

// layoutOf returns the layout of a message type. It computes each layout once.
func layoutOf(d protoreflect.MessageDescriptor) *layout {
	layoutsLock.RLock()
	l := layouts[d.FullName()]
	layoutsLock.RUnlock()
	if l != nil {
		return l
	}
	layoutsLock.Lock()
	defer layoutsLock.Unlock()
	return makeLayout(d)
}

func makeLayout(d protoreflect.MessageDescriptor) *layout {
	if l := layouts[d.FullName()]; l != nil {
		return l
	}
	l := &layout{size: perMessage, fields: map[protowire.Number]layoutField{}, any: d.FullName() == "google.protobuf.Any",
		regex: d.FullName() == pattern}
	layouts[d.FullName()] = l // before its fields, because a field may have the same type
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		l.size += int(reflect.TypeOf(t.Zero().Interface()).Elem().Size())
	} else { // a map entry
		l.size += perEntry
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		x := layoutField{}
		switch {
		case f.Message() != nil:
			x.message, x.each = makeLayout(f.Message()), perPointer
		case f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind:
			x.each = perString
		case f.IsList():
			x.each, x.packed = 8, 8
			if k := f.Kind(); k == protoreflect.Fixed64Kind || k == protoreflect.Sfixed64Kind || k == protoreflect.DoubleKind ||
				k == protoreflect.Fixed32Kind || k == protoreflect.Sfixed32Kind || k == protoreflect.FloatKind {
				x.packed = 1
			}
		}
		if f.ContainingOneof() != nil {
			x.each += perOneof
		}
		l.fields[f.Number()] = x
	}
	return l
}

func weighAny(typeURL string, b []byte, depth int) int {
	t, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	if err != nil {
		return len(b)
	}
	return layoutOf(t.Descriptor()).weigh(b, depth)
}

func (l *layout) weigh(b []byte, depth int) int {
	if depth >= MaxNesting {
		return tooDeep
	}
	total := l.size
	var url, value []byte // of an Any
	for len(b) > 0 && total <= MaxDecoded {
		field, rest, err := NextField(b)
		if err != nil {
			return total + len(b)
		}
		size, text := len(b)-len(rest), field.Bytes
		b = rest
		f := l.fields[field.Number]
		total += f.each
		if field.Type != protowire.BytesType {
			total += size
			continue
		}
		switch {
		case f.message != nil:
			one := f.message.weigh(text, depth+1)
			if one == tooDeep {
				return tooDeep
			}
			total += one
		case f.packed > 0:
			total += f.packed * len(text)
		default:
			total += len(text)
		}
		if l.regex && field.Number == patternField {
			total += perInstruction * PatternSize(len(text))
		}
		if l.any && field.Number == 1 {
			url = text
		} else if l.any && field.Number == 2 {
			value = text
		}
	}
	if len(value) > 0 && total <= MaxDecoded {
		one := weighAny(string(url), value, depth+1)
		if one == tooDeep {
			return tooDeep
		}
		total += one
	}
	return total
}
