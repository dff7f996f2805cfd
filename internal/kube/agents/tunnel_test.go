package agents

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"strings"
	"testing"

	api "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"      //nolint:staticcheck // deprecated, and what the server's side is
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //nolint:staticcheck // as httpstream
)

// TestTunnel: data passes through a tunnel to Kubernetes' own SPDY server and back, and a tunnel returns the error that
// the server sends.
func TestTunnel(t *testing.T) {
	frames, err := opening(9633)
	if err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"works": "", "fails": "no process listens at 9633"} {
		t.Run(name, func(t *testing.T) {
			client, server := net.Pipe()
			streams := make(chan httpstream.Stream, 2)
			conn, err := spdy.NewServerConnection(server, func(s httpstream.Stream, _ <-chan struct{}) error {
				if got := s.Headers().Get(api.PortHeader); got != "9633" {
					t.Errorf("port %s", got)
				}
				streams <- s
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go func() {
				errs, data := <-streams, <-streams // in any order: the server has several goroutines for them
				if errs.Headers().Get(api.StreamType) == api.StreamTypeData {
					errs, data = data, errs
				}
				if errs.Headers().Get(api.StreamType) != api.StreamTypeError ||
					data.Headers().Get(api.StreamType) != api.StreamTypeData {
					t.Errorf("streams %v and %v", errs.Headers(), data.Headers())
				}
				if says == "" {
					_, _ = io.CopyN(data, data, 1<<20)
				} else {
					_, _ = io.WriteString(errs, says)
				}
				_, _ = data.Close(), errs.Close()
			}()
			tun, err := newTunnel(client, frames)
			if err != nil {
				t.Fatal(err)
			}
			defer tun.Close()
			tun.ping()
			sent := make([]byte, 1<<20)
			_, _ = rand.Read(sent) // it never fails
			if says == "" {
				go func() { _, _ = tun.Write(sent) }() // if this fails, too little comes back
			}
			got, err := io.ReadAll(tun)
			switch {
			case says == "" && (err != nil || !bytes.Equal(got, sent)):
				t.Errorf("%d bytes came back, %v", len(got), err)
			case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// FuzzTunnel: whatever the other side sends, reading ends, and the tunnel keeps at most maxError bytes of errors.
func FuzzTunnel(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 1, 0, 0, 2, 'h', 'i'})
	f.Add([]byte{0, 0, 0, 1, 1, 0, 0, 2, 'n', 'o', 0x80, 3, 0, 7, 0, 0, 0, 4, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		client, server := net.Pipe()
		go func() {
			_, _ = server.Write(data) // until the tunnel is closed
			_ = server.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		tun, err := newTunnel(client, []byte{0})
		if err != nil {
			return // the server had closed it
		}
		got, _ := io.ReadAll(tun)
		if len(got) > len(data) || tun.failed.Len() > maxError {
			t.Errorf("%d bytes of %d, and an error of %d", len(got), len(data), tun.failed.Len())
		}
		_ = tun.Close()
	})
}
