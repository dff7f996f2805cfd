package limit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// Serve has a server answer at l until ctx ends, over TLS where it has a configuration of that. It closes l.
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
