package http

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/lib/delay"
	"tare/internal/lib/fault"
)

// TestHTTP2: HTTP/1.1 and HTTP/2 are served on one port, with the same answers; HTTP/2 only on request.
func TestHTTP2(t *testing.T) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client2 := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	client1 := &http.Client{Transport: &http.Transport{}}
	defer client2.CloseIdleConnections()
	defer client1.CloseIdleConnections()
	const size = 1 << 20
	for _, deaf := range []bool{false, true} {
		url := serve(t, Options{Protocol: HTTP2, Body: size, Deaf: deaf})
		for major, client := range map[int]*http.Client{1: client1, 2: client2} {
			r, err := client.Get(url)
			if status, b := answer(t, r, err); status != 200 || len(b) != size || r.ProtoMajor != major {
				t.Errorf("HTTP/%d: status %d and %d bytes over %s", major, status, len(b), r.Proto)
			}
			sent := bytes.Repeat([]byte("tare"), size/2)
			r, err = client.Post(url, "", bytes.NewReader(sent))
			if _, b := answer(t, r, err); bytes.Equal(b, sent) == deaf || deaf && len(b) != size {
				t.Errorf("HTTP/%d: %d bytes are answered with %d, deaf %v", major, len(sent), len(b), deaf)
			}
		}
	}
	if r, err := client2.Get(serve(t, Options{})); err == nil {
		r.Body.Close()
		t.Errorf("%s is served unasked", r.Proto)
	}
	r, err := client2.Post(serve(t, Options{Protocol: HTTP2}), "", io.LimitReader(zeros{}, maxEcho+1))
	if err == nil { // else the server hung up before the client had read its answer, which is fine too
		if status, _ := answer(t, r, nil); status != http.StatusRequestEntityTooLarge {
			t.Errorf("HTTP/2: status %d, want 413", status)
		}
	}
}

func TestGRPC(t *testing.T) {
	const size = 1 << 20
	for _, o := range []Options{{Body: 5}, {Body: 5, Deaf: true},
		{Body: size, Options: delay.Options{Delay: 3 * time.Millisecond}}} {
		o.Protocol = GRPC
		address := strings.Trim(strings.TrimPrefix(serve(t, o), "http:"), "/")
		c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*maxEcho)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		call := func(value []byte) (int, time.Duration, error) {
			start := time.Now()
			out := new(wrapperspb.BytesValue)
			err := c.Invoke(context.Background(), "/tare.Echo/Echo", wrapperspb.Bytes(value), out)
			return len(out.Value), time.Since(start), err
		}
		for _, sent := range []int{0, 7, size} {
			want := o.Body
			if sent > 0 && !o.Deaf {
				want = sent
			}
			if got, took, err := call(make([]byte, sent)); got != want || took < o.Delay || err != nil {
				t.Errorf("%+v: %d bytes are answered with %d after %v: %v; want %d", o, sent, got, took, err, want)
			}
		}
		if _, _, err := call(make([]byte, maxEcho+100)); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a message that is too large: %v", err)
		}
	}
}

func TestTCP(t *testing.T) {
	address := strings.Trim(strings.TrimPrefix(serve(t, Options{Protocol: TCP}), "http:"), "/")
	for range 2 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // one of them is open when the server ends
		for _, size := range []int{1, 1 << 20} {
			sent := bytes.Repeat([]byte("x"), size)
			go func() { _, _ = c.Write(sent) }()
			got := make([]byte, size)
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes do not come back: %v", size, err)
			}
		}
	}
	for _, o := range []delay.Options{{Delay: 1}, {Stall: delay.Stall{For: 1, Every: 5}}} {
		if err := Serve(t.Context(), Options{Protocol: TCP, Listen: "127.0.0.1:0", Options: o},
			nil); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestPeers: independent clients get answers: curl, and h2load with many concurrent requests.
func TestPeers(t *testing.T) {
	url := serve(t, Options{Protocol: HTTP2, Body: 1000})
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("needs curl")
	}
	out, err := exec.Command(curl, "-s", "-w", "%{http_version} %{size_download}", "-o", "/dev/null",
		"--http2-prior-knowledge", url).CombinedOutput()
	if err != nil || string(out) != "2 1000" {
		t.Errorf("curl: %v: %s", err, out)
	}
	h2load, err := exec.LookPath("h2load")
	if err != nil {
		t.Skip("needs h2load: see test/setup")
	}
	out, err = exec.Command(h2load, "-n", "2000", "-c", "2", "-m", "50", url).CombinedOutput()
	if err != nil || !regexp.MustCompile(`2000 succeeded, 0 failed`).Match(out) {
		t.Errorf("h2load: %v: %s", err, out)
	}
}
