package translate

import "google.golang.org/protobuf/encoding/protowire"

// Field is a field of a message in the wire format. Bytes and Varint are set only for their types.
type Field struct {
	Number protowire.Number
	Type   protowire.Type
	Bytes  []byte // for protowire.BytesType
	Varint uint64 // for protowire.VarintType
}

// Is reports whether a field has the given number and type.
func (f Field) Is(number protowire.Number, kind protowire.Type) bool {
	return f.Number == number && f.Type == kind
}

// Fields calls the function take with each field of the message b, and returns its first error.
func Fields(b []byte, take func(Field) error) error {
	for len(b) > 0 {
		f, rest, err := NextField(b)
		if err == nil {
			err = take(f)
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// NextField parses the field at the beginning of b. rest is what follows the field.
func NextField(b []byte) (f Field, rest []byte, err error) {
	var n int
	if f.Number, f.Type, n = protowire.ConsumeTag(b); n < 0 {
		return f, nil, protowire.ParseError(n)
	}
	b = b[n:]
	switch f.Type {
	case protowire.BytesType:
		f.Bytes, n = protowire.ConsumeBytes(b)
	case protowire.VarintType:
		f.Varint, n = protowire.ConsumeVarint(b)
	default:
		n = protowire.ConsumeFieldValue(f.Number, f.Type, b)
	}
	if n < 0 {
		return f, nil, protowire.ParseError(n)
	}
	return f, b[n:], nil
}
