package limit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// Serve runs a server on l until ctx ends, over TLS if the server has a TLSConfig. It then closes l and all
// connections, also those with requests in progress, and returns nil.
func Serve(ctx context.Context, l net.Listener, s *http.Server) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	serve := s.Serve
	if s.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP at %s: %w", l.Addr(), err)
	}
	return nil
}
