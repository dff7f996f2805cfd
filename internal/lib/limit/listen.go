// Package limit bounds what unauthenticated peers can cost a server: how many connections they hold (bound.go,
// latest.go), and how much work it takes to verify the certificates they present (certchain.go). It also has helpers
// for servers (listen.go, serve.go).
package limit

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// TCP listens at host:port; port 0 selects a free port. Its error is a fault about the address, with code Machine if
// this machine or process cannot use the address, and code Usage if the address is invalid.
func TCP(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err == nil {
		return l, nil
	}
	refused := func(hint, what string) error { return fault.Wrap(err, fault.Machine, address, hint, "%s", what) }
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		_, port, _ := net.SplitHostPort(address)
		return nil, refused(fmt.Sprintf("'ss -ltnp sport = :%s' names its holder; or use port 0 for a free one", port),
			"the port is in use")
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, refused("'ip address' lists those it has", "this machine does not have that address")
	case errors.Is(err, unix.EACCES):
		return nil, refused("use a port above 1023, or run as root or with CAP_NET_BIND_SERVICE",
			"no permission to use this port")
	}
	return nil, fault.Wrap(err, fault.Usage, address, "give it as host:port, like 127.0.0.1:0",
		"cannot listen on this address")
}
