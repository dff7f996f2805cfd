// Package handshake wraps the connections that a gRPC client makes, so that it limits what servers make it read. gRPC
// limits the size of messages, but not the rate or the pieces in which their bytes arrive.
package handshake

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

// Then returns credentials whose connections, once their handshake has ended, are those that wrap returns.
func Then(of credentials.TransportCredentials, wrap func(net.Conn) net.Conn) credentials.TransportCredentials {
	return wrapping{of, wrap}
}

type wrapping struct {
	credentials.TransportCredentials
	wrap func(net.Conn) net.Conn
}

// ClientHandshake implements credentials.TransportCredentials.
func (w wrapping) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return w.wrap(c), info, nil
}

// Clone implements credentials.TransportCredentials.
func (w wrapping) Clone() credentials.TransportCredentials {
	return wrapping{w.TransportCredentials.Clone(), w.wrap}
}
