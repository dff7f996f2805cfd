package handshake

import (
	"context"
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// failing are credentials whose handshake fails.
type failing struct {
	credentials.TransportCredentials
}

var errRefused = errors.New("refused")

func (failing) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errRefused
}

// TestThen: connections are wrapped after the handshake, also by a copy of the credentials, and not if it fails.
func TestThen(t *testing.T) {
	type wrapped struct{ net.Conn }
	wrap := func(c net.Conn) net.Conn { return wrapped{c} }
	raw, other := net.Pipe()
	defer raw.Close()
	defer other.Close()
	c, _, err := Then(insecure.NewCredentials(), wrap).Clone().ClientHandshake(t.Context(), "server", raw)
	if w, is := c.(wrapped); err != nil || !is || w.Conn != raw {
		t.Errorf("%T, %v", c, err)
	}
	c, _, err = Then(failing{}, wrap).ClientHandshake(t.Context(), "server", raw)
	if c != nil || !errors.Is(err, errRefused) {
		t.Errorf("%T, %v", c, err)
	}
}
