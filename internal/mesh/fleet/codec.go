package fleet

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// What a control plane may say. It is what is weighed, and thousands of proxies hear it at once.
const (
	// maxMessage bounds a response, in bytes: all that a proxy hears of the largest mesh in the clear (MaxServices, each
	// told of all) has 40 MiB, in four responses.
	maxMessage = 64 << 20
	// maxFields bounds the fields of a response, most of which are resources: of empty ones, two bytes take a hundred.
	maxFields = 200_000
	// maxHeaders bounds a list of headers, in bytes.
	maxHeaders = 16 << 10
)

// codec decodes responses as gRPC does, of all proxies at most maxMessage bytes at a time.
type codec struct {
	encoding.CodecV2
	room *semaphore.Weighted
}

func newCodec() codec {
	return codec{encoding.GetCodecV2(protocodec.Name), semaphore.NewWeighted(maxMessage)}
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	n := int64(data.Len()) // gRPC has refused more than maxMessage
	if err := c.room.Acquire(context.Background(), n); err != nil {
		return err
	}
	defer c.room.Release(n)
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := checkFields(buf.ReadOnlyData()); err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{mem.SliceBuffer(buf.ReadOnlyData())}, v)
}

// checkFields refuses a message with too many fields. What else is wrong with it, decoding finds.
func checkFields(message []byte) error {
	for n := 0; len(message) > 0; n++ {
		if n == maxFields {
			return fmt.Errorf("a response has more than %d resources and other fields", maxFields)
		}
		_, _, size := protowire.ConsumeField(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
	}
	return nil
}
