package part

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tare/internal/experiment/role"
	"tare/test/port"
)

var secret = Secret{Token: "token", Pod: "pod"}

// listening serves a part of version 1, which has a token, until the test ends.
func listening(t *testing.T, player Player) (address string, ended <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), l, secret, "1", time.Minute, player) }()
	return l.Addr().String(), done
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// reached returns an address at which a listener starts after a while.
func reached(t *testing.T) string {
	t.Helper()
	address := port.Free(t)
	time.AfterFunc(200*time.Millisecond, func() {
		if l, err := net.Listen("tcp", address); err != nil {
			t.Error(err)
		} else {
			context.AfterFunc(t.Context(), func() { l.Close() })
		}
	})
	return address
}

func fails(t *testing.T) func(error) { return func(err error) { t.Errorf("it ended: %v", err) } }

// TestPart: connections of strangers are closed, another version gets an error, and the load then runs with the trial's
// arguments.
func TestPart(t *testing.T) {
	address, ended := listening(t, func(ctx context.Context, conn *role.Conn, args []string) error {
		return role.Work(ctx, conn, role.Wants{}, func(context.Context, role.Schedule) (string, error) {
			return strings.Join(args, " "), nil
		})
	})
	for range 20 {
		dial(t, address) // and say nothing
	}
	stranger := dial(t, address)
	if _, err := stranger.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	flood := dial(t, address)
	go func() { _, _ = flood.Write([]byte(strings.Repeat("x", 1<<20))) }()
	to := To{Reach: reached(t), Args: []string{"load", "http"}}
	for _, c := range []struct {
		with          Secret
		version, want string
	}{
		{Secret{}, "1", "does not have the secret"},
		{Secret{"guessed", "pod"}, "1", "does not have the secret"},
		{Secret{"token", "another"}, "1", "does not have the secret"},
		{secret, "2", "the image has tare 1, and kubectl-tare is 2"},
	} {
		if _, _, err := Meet(t.Context(), "client", dial(t, address), c.with, c.version, to, fails(t)); err == nil ||
			!strings.Contains(err.Error(), "speaking with client: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.with, err)
		}
	}
	r, clock, err := Meet(t.Context(), "client", dial(t, address), secret, "1", to, fails(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late := time.Since(time.Unix(0, clock.Wall)); late < 0 || late > time.Minute {
		t.Errorf("its clock shows %v", time.Unix(0, clock.Wall))
	}
	if at := clock.MonotonicAt(time.Unix(0, clock.Wall).Add(time.Second)); at != clock.Monotonic+1e9 {
		t.Errorf("a second later it shows %d", at-clock.Monotonic)
	}
	if err := r.Send(role.Start, role.Schedule{Duration: 1}); err != nil {
		t.Fatal(err)
	}
	var result string
	if err := r.Result(t.Context(), time.Minute, &result); err != nil || result != "load http" {
		t.Errorf("%q, %v", result, err)
	}
	r.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPartFails: the trial gets the error of a part.
func TestPartFails(t *testing.T) {
	address, ended := listening(t, func(context.Context, *role.Conn, []string) error { return errors.New("no room") })
	said := make(chan error, 1)
	heard := func(err error) { said <- err }
	if _, _, err := Meet(t.Context(), "client", dial(t, address), secret, "1", To{}, heard); err != nil {
		t.Fatal(err)
	}
	if err := <-said; !strings.Contains(err.Error(), "client ended during the trial: no room") {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("it ended without an error")
	}
}

// A process that listens in place of a part gets nothing from the trial, and its messages are rejected.
func TestImpostor(t *testing.T) {
	strange := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert}
	if other, err := (Secret{Token: "token", Pod: "its own"}).config(); err != nil {
		t.Fatal(err)
	} else {
		strange.Certificates = other.Certificates
	}
	for name, serve := range map[string]func(net.Conn) net.Conn{
		"without TLS": func(c net.Conn) net.Conn { return c },
		"with TLS":    func(c net.Conn) net.Conn { return tls.Server(c, strange) },
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		received := make(chan string, 1)
		go func() {
			defer l.Close()
			c, err := l.Accept()
			if err != nil {
				received <- err.Error()
				return
			}
			defer c.Close()
			c = serve(c)
			_ = role.NewConn(c, c).Send(helloEvent, Clock{}) // the trial may have closed
			all, _ := io.ReadAll(c)                          // until it closes
			received <- string(all)
		}()
		_, _, err = Meet(t.Context(), "client", dial(t, l.Addr().String()), secret, "1",
			To{Args: []string{"load", "http"}}, fails(t))
		if err == nil {
			t.Errorf("%s: the trial speaks with an impostor", name)
		}
		if all := <-received; strings.Contains(all, "token") || strings.Contains(all, "http") {
			t.Errorf("%s: it received %q", name, all)
		}
	}
}

// The trial does not wait forever for a process that listens in place of a part and never answers.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		_, _, err := Meet(t.Context(), "client", here, secret, "1", To{}, fails(t))
		if want := "speaking with client: no answer within 10s"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

// TestNobodyComes: a part does not wait forever.
func TestNobodyComes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), l, secret, "1", time.Millisecond, nil); err == nil ||
		!strings.Contains(err.Error(), "no instructions arrived within 1ms") {
		t.Error(err)
	}
}
