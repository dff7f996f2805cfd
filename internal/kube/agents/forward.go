package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	api "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // deprecated, but client-go returns it
	portforwarding "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/transport/websocket"

	"tare/internal/lib/text"
)

// Dial connects to a port on a pod's loopback interface, as kubectl port-forward does.
func (c *Cluster) Dial(ctx context.Context, namespace, pod string, port int) (net.Conn, error) {
	return c.dial(ctx, &Agent{Namespace: namespace, Pod: pod, Port: port})
}

// dial connects to a port on a pod's loopback interface, as kubectl port-forward does: by WebSocket, or else by SPDY.
func (c *Cluster) dial(ctx context.Context, a *Agent) (net.Conn, error) {
	url := c.core.RESTClient().Post().Namespace(a.Namespace).Resource("pods").Name(a.Pod).SubResource("portforward").URL()
	conn, err := c.dialWebsocket(ctx, url, a.Port)
	if err == nil || !httpstream.IsUpgradeFailure(err) && !httpstream.IsHTTPSProxyError(err) {
		return conn, err
	}
	type result struct {
		conn *forwarded
		err  error
	}
	done := make(chan result, 1)
	go func() { // the dialer does not take a context
		f, err := c.dialSPDY(url, a.Port)
		done <- result{f, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, r.err
		}
		return r.conn, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				_ = r.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func (c *Cluster) dialWebsocket(ctx context.Context, url *url.URL, port int) (net.Conn, error) {
	transport, holder, err := websocket.RoundTripperFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("forwarding a port: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("forwarding a port: %w", err)
	}
	opening, err := c.opening(port)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(transport, holder, r, portforwarding.WebsocketsSPDYTunnelingPortForwardV1)
	if err != nil {
		return nil, err
	}
	t, err := newTunnel(portforward.NewTunnelingConnection("agent", conn), opening)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// opening returns the frames that open a tunnel to a port. Building them takes 1 MB for a moment, so it is done once
// for each port.
func (c *Cluster) opening(port int) ([]byte, error) {
	if frames, made := c.tunnels.Load(port); made {
		return frames.([]byte), nil
	}
	frames, err := opening(port)
	if err == nil {
		c.tunnels.Store(port, frames)
	}
	return frames, err
}

func (c *Cluster) dialSPDY(url *url.URL, port int) (*forwarded, error) {
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("forwarding a port: %w", err)
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	return forward(conn, port)
}

// forwarded is a connection to a port of a pod: a stream of data, and one on which the node reports errors.
type forwarded struct {
	httpstream.Stream
	conn   httpstream.Connection
	failed chan error // the node's error, at most once
}

func forward(conn httpstream.Connection, port int) (*forwarded, error) {
	headers := http.Header{}
	headers.Set(api.StreamType, api.StreamTypeError)
	headers.Set(api.PortHeader, strconv.Itoa(port))
	headers.Set(api.PortForwardRequestIDHeader, "0")
	errs, err := conn.CreateStream(headers)
	if err == nil {
		err = errs.Close() // nothing is written to this stream
	}
	var data httpstream.Stream
	if err == nil {
		headers.Set(api.StreamType, api.StreamTypeData)
		data, err = conn.CreateStream(headers)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("forwarding a port: %w", err)
	}
	f := &forwarded{data, conn, make(chan error, 1)}
	go func() {
		defer close(f.failed)
		if says, _ := io.ReadAll(io.LimitReader(errs, 4096)); len(says) > 0 {
			f.failed <- errors.New(text.ClipLine(string(bytes.TrimSpace(says)), maxReason))
		}
	}()
	return f, nil
}

// Read reads from the pod. At the end of the data it returns the node's error, if there is one.
func (f *forwarded) Read(p []byte) (int, error) {
	n, err := f.Stream.Read(p)
	if err == nil || n > 0 {
		return n, nil //nolint:nilerr // the next call returns the error
	}
	select {
	case said := <-f.failed:
		if said != nil {
			err = said
		}
	case <-time.After(100 * time.Millisecond):
	}
	return 0, err
}

// Close ends the connection to the API server.
func (f *forwarded) Close() error { return f.conn.Close() }

// The remaining methods of net.Conn. Deadlines have no effect: each request has a timeout, and closes the connection.
func (f *forwarded) LocalAddr() net.Addr              { return address{} }
func (f *forwarded) RemoteAddr() net.Addr             { return address{} }
func (f *forwarded) SetDeadline(time.Time) error      { return nil }
func (f *forwarded) SetReadDeadline(time.Time) error  { return nil }
func (f *forwarded) SetWriteDeadline(time.Time) error { return nil }

type address struct{}

func (address) Network() string { return "portforward" }
func (address) String() string  { return "pod" }
