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

// Limits on responses, which thousands of proxies receive at once from a control plane under test.
const (
	// maxMessage limits a response, in bytes. In the largest mesh without TLS, in which each proxy gets all of MaxServices
	// services, a proxy gets 40 MiB in four responses.
	maxMessage = 64 << 20
	// maxFields limits the fields of a response, most of which are resources: an empty resource has 2 bytes, and takes 100
	// bytes in memory.
	maxFields = 200_000
	// maxHeaders limits a list of headers, in bytes.
	maxHeaders = 16 << 10
)

// codec decodes responses like gRPC's codec, but at most maxMessage bytes at a time for all proxies together.
type codec struct {
	encoding.CodecV2
	room *semaphore.Weighted
}

func newCodec() codec {
	return codec{encoding.GetCodecV2(protocodec.Name), semaphore.NewWeighted(maxMessage)}
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	n := int64(data.Len()) // at most maxMessage: gRPC has refused longer ones
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

// checkFields refuses a message with too many fields. Decoding finds other errors.
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
