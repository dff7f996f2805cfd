package role

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/pace"
)

// TestRemote: a role at the other end of a connection is used in the same way as a process.
func TestRemote(t *testing.T) {
	for _, c := range []struct {
		name string
		role func(*Conn, net.Conn) error // its error is reported
		ends string                      // reported when it ends; empty: nothing
	}{
		{"to its end", func(c *Conn, _ net.Conn) error {
			run := func(_ context.Context, s Schedule) (int64, error) { return s.Duration, nil }
			return Work(context.Background(), c, Wants{}, run)
		}, ""},
		{"goes away", func(_ *Conn, n net.Conn) error { return n.Close() }, "ended during the trial"},
		{"fails", func(*Conn, net.Conn) error { return errors.New("no room") }, "ended during the trial: no room"},
		{"speaks something else", func(_ *Conn, n net.Conn) error {
			_, err := n.Write([]byte("HTTP/1.1 400 Bad Request\r\n"))
			return errors.Join(err, n.Close())
		}, "is not of the role protocol"},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, there := net.Pipe()
			go func() {
				conn := NewConn(there, there)
				if err := c.role(conn, there); err != nil {
					_ = conn.Fail(err)
				}
				_ = there.Close()
			}()
			ended := make(chan error, 1)
			r := Over("a load", NewConn(here, here), here, func(err error) { ended <- err })
			defer r.Close()
			if c.ends != "" {
				if err := <-ended; !strings.Contains(err.Error(), c.ends) {
					t.Errorf("%v, want %s", err, c.ends)
				}
				if _, err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "before its ready message") {
					t.Error(err)
				}
				return
			}
			if _, err := r.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := r.Send(Start, Schedule{Duration: 7}); err != nil {
				t.Fatal(err)
			}
			var result int64
			if err := r.Result(t.Context(), time.Minute, &result); err != nil || result != 7 {
				t.Errorf("%d, %v", result, err)
			}
			r.Close()
			select {
			case err := <-ended:
				t.Errorf("the end of a role that gave its result, or was asked to end, is said: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
		})
	}
}

// TestDropped: log lines that nobody receives are counted once 16 wait.
func TestDropped(t *testing.T) {
	s := newSession("a data plane", NewConn(strings.NewReader(strings.Repeat(`{"event":"log","data":"x"}`+"\n", 20)), nil))
	noted := 0
	s.listen(func(string) { noted++ })
	if len(s.Log()) != 16 || s.Dropped() != 4 || noted != 20 {
		t.Errorf("%d lines wait, %d were dropped, and %d were noted", len(s.Log()), s.Dropped(), noted)
	}
}

// TestSuspended: a load whose machine was suspended after its schedule was made reports this instead of a result, which
// would be of another time than the window.
func TestSuspended(t *testing.T) {
	for slept, want := range map[time.Duration]bool{0: false, time.Minute: true} {
		here, there := net.Pipe()
		go func() {
			conn := NewConn(there, there)
			run := func(context.Context, Schedule) (int64, error) { return 7, nil }
			if err := Work(context.Background(), conn, Wants{}, run); err != nil {
				_ = conn.Fail(err)
			}
			_ = there.Close()
		}()
		r := Over("a load", NewConn(here, here), here, func(error) {})
		if _, err := r.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Send(Start, Schedule{Suspended: new(pace.Suspended() - int64(slept))}); err != nil {
			t.Fatal(err)
		}
		var result int64
		err := r.Result(t.Context(), time.Minute, &result)
		if errors.Is(err, ErrSuspended) != want || (err == nil) == want {
			t.Errorf("suspended for %v: %v", slept, err)
		}
		if want && !strings.Contains(err.Error(), "the machine was suspended while the trial was set up or ran, for 1m0s") {
			t.Error(err)
		}
		r.Close()
	}
}

// A result with many empty values is rejected before it takes memory.
func TestDecodeHostile(t *testing.T) {
	var result struct {
		Slices []struct{ Done, P50, P99 int64 } `json:"slices"`
	}
	text := json.RawMessage(`{"slices":[` + strings.Repeat("{},", 11<<20) + `{}]}`)
	s := newSession("a load", nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := s.Decode(text, "result", &result)
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 0 {
		t.Errorf("decoding took %d MiB", n)
	}
	if want := "the result of a load has more than 100000 values"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
