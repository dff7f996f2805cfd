package http

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// echoBuffer is the maximum number of bytes that are read and sent back at once.
const echoBuffer = 16 << 10

// echoServer echoes data (RFC 862). As is usual for servers in Go, each connection has a goroutine and a buffer.
type echoServer struct {
	ctx     context.Context // ends at Close
	close   context.CancelFunc
	secured *tls.Config // nil: cleartext
}

func newEcho(secured *tls.Config) *echoServer {
	ctx, cancel := context.WithCancel(context.Background())
	return &echoServer{ctx, cancel, secured}
}

// Serve serves until Close. It returns http.ErrServerClosed once all connections have ended.
func (s *echoServer) Serve(l net.Listener) error {
	if s.secured != nil {
		l = tls.NewListener(l, s.secured)
	}
	defer context.AfterFunc(s.ctx, func() { _ = l.Close() })()
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if s.ctx.Err() != nil {
				return http.ErrServerClosed
			}
			return err
		}
		serving.Go(func() {
			closed := context.AfterFunc(s.ctx, func() { _ = c.Close() })
			echoAll(c)
			if closed() {
				_ = c.Close() // its client has gone
			}
		})
	}
}

// Close ends the listener and all connections.
func (s *echoServer) Close() error {
	s.close()
	return nil
}

// echoAll sends back what it reads, until the client closes the connection.
func echoAll(c net.Conn) {
	buffer := make([]byte, echoBuffer)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		if _, err := c.Write(buffer[:n]); err != nil {
			return
		}
	}
}
