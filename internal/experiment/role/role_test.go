package role

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestPlay: serving ends when the parent closes the pipe, which is not an error.
func TestPlay(t *testing.T) {
	broken := errors.New("broken")
	wait := func(ctx context.Context) error { <-ctx.Done(); return nil }
	for name, c := range map[string]struct {
		input io.Reader
		serve func(context.Context) error
		want  string
	}{
		"the parent closes":     {strings.NewReader(""), wait, ""},
		"the parent says what?": {strings.NewReader("nonsense\n"), wait, "not of the role protocol"},
		"it fails by itself":    {strings.NewReader(""), func(context.Context) error { return broken }, "broken"},
	} {
		err := Play(t.Context(), NewConn(c.input, io.Discard), c.serve)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	silent, end := io.Pipe()
	defer end.Close()
	if err := Play(ctx, NewConn(silent, io.Discard), wait); err != nil {
		t.Errorf("the context ends: %v", err)
	}
}

// TestConn: one end receives the messages that the other sent, in order, and errors with their text and code.
func TestConn(t *testing.T) {
	r, w := io.Pipe()
	from, to := NewConn(r, io.Discard), NewConn(strings.NewReader(""), w)
	go func() {
		defer w.Close()
		_ = to.Send(Log, "hello")
		_ = to.Send(Ready, 5)
		_ = to.Fail(broken{})
	}()
	var n int
	var said []string
	if err := from.Expect(Ready, &n, func(s string) { said = append(said, s) }); err != nil || n != 5 || len(said) != 1 {
		t.Errorf("ready %d, log %q, %v", n, said, err)
	}
	if err := from.Expect(Result, nil, nil); err == nil || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("the error came as %v", err)
	}
	if err := from.Expect(Result, nil, nil); !errors.Is(err, io.EOF) {
		t.Errorf("the end came as %v", err)
	}
}

// TestEndlessMessage: a message without an end causes an error, and does not fill the memory.
func TestEndlessMessage(t *testing.T) {
	_, err := NewConn(endless{}, io.Discard).Receive()
	if err == nil || !strings.Contains(err.Error(), "more than 32 MiB") {
		t.Errorf("got %v", err)
	}
	long := `{"event":"log","data":"` + strings.Repeat("x", 1<<20) + `"}` + "\n"
	m, err := NewConn(strings.NewReader(long), io.Discard).Receive()
	if err != nil || m.Event != Log || len(m.Data) != 1<<20+2 {
		t.Errorf("a long message: %s, %d bytes, %v", m.Event, len(m.Data), err)
	}
}

// endless reads as a line that never ends.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

type broken struct{}

func (broken) Error() string { return "it broke" }

// TestWork: a load sends ready, runs by the schedule, and stays with its result until the parent closes the pipe, which
// it may do at any time.
func TestWork(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		input string
		run   func(context.Context, Schedule) (int64, error)
		want  string // the error
		says  string // the last message
	}{
		"a whole run": {`{"event":"start","data":{"duration_ns":7}}` + "\n",
			func(_ context.Context, s Schedule) (int64, error) { return s.Duration, nil }, "", `{"event":"result","data":7}`},
		"the parent goes before": {"", func(context.Context, Schedule) (int64, error) {
			t.Error("it ran")
			return 0, nil
		}, "", `{"event":"ready","data":"here"}`},
		"the parent goes meanwhile": {`{"event":"start","data":{}}` + "\n",
			func(ctx context.Context, _ Schedule) (int64, error) { <-ctx.Done(); return 0, ctx.Err() }, "",
			`{"event":"ready","data":"here"}`},
		"the parent says another way": {`{"event":"ready"}` + "\n",
			func(context.Context, Schedule) (int64, error) { return 0, nil }, "waiting for start: got ready",
			`{"event":"ready","data":"here"}`},
	} {
		var out strings.Builder
		err := Work(t.Context(), NewConn(strings.NewReader(c.input), &out), "here", c.run)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if said := strings.TrimSpace(out.String()); !strings.HasSuffix(said, c.says) {
			t.Errorf("%s: it said %s", name, said)
		}
	}
	input, keep := io.Pipe() // the parent stays, so errors are sent
	defer keep.Close()
	go func() { _ = NewConn(strings.NewReader(""), keep).Send(Start, Schedule{}) }()
	if err := Work(t.Context(), NewConn(input, io.Discard), "here",
		func(context.Context, Schedule) (int64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("what went wrong came as %v", err)
	}
}
