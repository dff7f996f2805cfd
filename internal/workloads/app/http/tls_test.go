package http

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestTLS: with TLS, every protocol is served as without it, with a certificate for the address, and cleartext is
// refused.
func TestTLS(t *testing.T) {
	trusting := &tls.Config{InsecureSkipVerify: true}
	dial := func(o Options, next ...string) *tls.Conn {
		o.TLS = true
		address := strings.Trim(strings.TrimPrefix(serve(t, o), "http:"), "/")
		config := trusting.Clone()
		config.NextProtos = next
		c, err := tls.Dial("tcp", address, config)
		if err != nil {
			t.Fatalf("%s: %v", o.Protocol, err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.ConnectionState().PeerCertificates[0].VerifyHostname("127.0.0.1"); err != nil {
			t.Errorf("%s: %v", o.Protocol, err)
		}
		return c
	}
	for protocol, want := range map[Protocol]string{HTTP1: "http/1.1", HTTP2: "h2", GRPC: "h2"} {
		c := dial(Options{Protocol: protocol}, "h2", "http/1.1")
		if got := c.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("%s: agreed on %q, want %q", protocol, got, want)
		}
	}
	c := dial(Options{Protocol: TCP})
	echo := make([]byte, 4)
	if _, err := c.Write([]byte("tare")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, echo); err != nil || string(echo) != "tare" {
		t.Errorf("TCP: %q comes back: %v", echo, err)
	}

	for _, protocol := range []Protocol{HTTP1, HTTP2} {
		url := serve(t, Options{Protocol: protocol, TLS: true, Body: 7})
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting.Clone(), ForceAttemptHTTP2: true}}
		r, err := client.Get(strings.Replace(url, "http:", "https:", 1))
		if status, b := answer(t, r, err); status != http.StatusOK || len(b) != 7 ||
			(r.ProtoMajor == 2) != (protocol == HTTP2) {
			t.Errorf("%s: status %d with %d bytes over %s", protocol, status, len(b), r.Proto)
		}
		client.CloseIdleConnections()
		if r, err := http.Get(url); err == nil {
			r.Body.Close()
			if r.StatusCode != http.StatusBadRequest {
				t.Errorf("%s in the clear: status %d", protocol, r.StatusCode)
			}
		}
	}

	address := strings.Trim(strings.TrimPrefix(serve(t, Options{Protocol: GRPC, TLS: true}), "http:"), "/")
	calls, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(trusting.Clone())))
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	out := new(wrapperspb.BytesValue)
	if err := calls.Invoke(t.Context(), "/tare.Echo/Echo", wrapperspb.Bytes([]byte("tare")), out); err != nil ||
		string(out.Value) != "tare" {
		t.Errorf("gRPC: %q comes back: %v", out.Value, err)
	}
}
