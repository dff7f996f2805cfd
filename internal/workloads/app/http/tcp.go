package http

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// echoBuffer is how many bytes are read and sent back at once, at most.
const echoBuffer = 16 << 10

// echoServer sends back what comes (RFC 862), with a goroutine and a buffer for each connection as servers in Go have.
type echoServer struct {
	mu       sync.Mutex
	closed   bool
	listener net.Listener
	open     map[net.Conn]bool
	serving  sync.WaitGroup
	secured  *tls.Config // nil: in the clear
}

func newEcho(secured *tls.Config) *echoServer {
	return &echoServer{open: map[net.Conn]bool{}, secured: secured}
}

// Serve returns http.ErrServerClosed after Close, when all connections have ended.
func (s *echoServer) Serve(l net.Listener) error {
	if s.secured != nil {
		l = tls.NewListener(l, s.secured)
	}
	if !s.listens(l) {
		return http.ErrServerClosed
	}
	defer s.serving.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if s.ended() {
				return http.ErrServerClosed
			}
			return err
		}
		if !s.add(c) {
			_ = c.Close()
			continue
		}
		s.serving.Go(func() {
			echoAll(c)
			s.drop(c)
		})
	}
}

// listens notes the listener; false after Close.
func (s *echoServer) listens(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = l
	return !s.closed
}

// add notes a connection; false after Close.
func (s *echoServer) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.open[c] = true
	}
	return !s.closed
}

func (s *echoServer) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *echoServer) drop(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = c.Close() // its client has gone, or Close has been here
	delete(s.open, c)
}

// Close ends the connections and Serve.
func (s *echoServer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		_ = c.Close()
	}
	if s.listener == nil {
		return nil
	}
	return s.listener.Close()
}

// echoAll sends back what comes until the client ends.
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
