package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/delay"
	"tare/internal/lib/fault"
	"tare/test/started"
)

// TestMain lets the test binary start itself again in the role of an application.
func TestMain(m *testing.M) {
	options := os.Getenv("TARE_TEST_APP")
	if options == "" {
		os.Exit(m.Run())
	}
	var o Options
	conn := role.Stdio()
	err := json.Unmarshal([]byte(options), &o)
	if err == nil {
		err = Run(context.Background(), o, conn)
	}
	if err != nil {
		_ = conn.Fail(err)
	}
	os.Exit(int(fault.CodeOf(err)))
}

// serve runs a server until the test ends and returns its URL.
func serve(t *testing.T, o Options) string {
	t.Helper()
	o.Listen = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, o, func(r Ready) error { ready <- r.Address; return nil })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + <-ready + "/"
}

func answer(t *testing.T, r *http.Response, err error) (int, []byte) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, b
}

func TestAnswers(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	for _, size := range []int{0, 128, 1 << 20} {
		url := serve(t, Options{Body: size})
		r, err := http.Get(url)
		if status, b := answer(t, r, err); status != 200 || len(b) != size {
			t.Errorf("status %d and %d bytes, want 200 and %d", status, len(b), size)
		}
		if r.ContentLength != int64(size) {
			t.Errorf("length %d, want %d", r.ContentLength, size)
		}
		sent := bytes.Repeat([]byte("tare"), 10_000)
		r, err = http.Post(url, "", bytes.NewReader(sent))
		if status, b := answer(t, r, err); status != 200 || !bytes.Equal(b, sent) {
			t.Errorf("status %d, echo of %d bytes", status, len(b))
		}
		r, err = http.Post(url, "", io.MultiReader(bytes.NewReader(sent))) // chunked
		if status, b := answer(t, r, err); status != 200 || !bytes.Equal(b, sent) {
			t.Errorf("status %d, echo of %d chunked bytes", status, len(b))
		}
	}
}

func TestTooLargeABody(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	url := serve(t, Options{})
	r, err := http.Post(url, "", io.LimitReader(zeros{}, maxEcho+1))
	if err != nil {
		return // the server hung up before the client had read its answer, which is fine too
	}
	if status, _ := answer(t, r, nil); status != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", status)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestDelayIsNeverShort(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	for _, wait := range []time.Duration{300 * time.Microsecond, 5 * time.Millisecond} {
		url := serve(t, Options{Options: delay.Options{Delay: wait}})
		shortest := time.Hour
		for range 20 {
			start := time.Now()
			r, err := http.Get(url)
			answer(t, r, err)
			shortest = min(shortest, time.Since(start))
		}
		if shortest < wait {
			t.Errorf("answered after %s, want at least %s", shortest, wait)
		}
		t.Logf("delay %s: shortest answer %s", wait, shortest)
	}
}

func TestCannotListen(t *testing.T) {
	taken := strings.TrimSuffix(strings.TrimPrefix(serve(t, Options{}), "http://"), "/")
	for _, tt := range []struct {
		o    Options
		code fault.Code
		want string
	}{
		{Options{Listen: taken}, fault.Machine, "port is in use"},
		{Options{Listen: "127.0.0.1:0", Options: delay.Options{Delay: -1}}, fault.Usage, "must be at least 0s"},
		{Options{Listen: "127.0.0.1:0", Body: -1}, fault.Usage, "must be a number of bytes"},
	} {
		err := Serve(t.Context(), tt.o, func(Ready) error { return nil })
		if fault.CodeOf(err) != tt.code || fault.HintOf(err) == "" || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: code %d, hint %q, %v; want code %d and %q", tt.o, fault.CodeOf(err), fault.HintOf(err), err, tt.code,
				tt.want)
		}
	}
}

func TestServeEndsIfNobodyHears(t *testing.T) {
	deaf := errors.New("deaf")
	if err := Serve(t.Context(), Options{Listen: "127.0.0.1:0"},
		func(Ready) error { return deaf }); !errors.Is(err, deaf) {
		t.Errorf("error %v", err)
	}
}

func TestRole(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), `TARE_TEST_APP={"Listen":"127.0.0.1:0","Body":7}`)
	cmd.Stderr = os.Stderr
	in, out := started.Piped(t, cmd)
	var ready Ready
	if err := role.NewConn(out, in).Expect(role.Ready, &ready, nil); err != nil {
		t.Fatal(err)
	}
	r, err := http.Get("http://" + ready.Address)
	if status, b := answer(t, r, err); status != 200 || len(b) != 7 {
		t.Errorf("status %d and %d bytes", status, len(b))
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}
