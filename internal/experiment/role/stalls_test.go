package role

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestWorkThenStalls: a load whose schedule announces stalls sends its result only after it got them; another sends it
// at once. If the parent closes the pipe in between, that is not an error.
func TestWorkThenStalls(t *testing.T) {
	for name, c := range map[string]struct {
		start  Schedule
		stalls any
		goes   bool // the parent closes the pipe instead of sending stalls
		says   string
		want   string // the error
	}{
		"told": {Schedule{Stalls: true}, Stalls{Spans: [][2]int64{{1, 2}, {4, 8}}}, false,
			`{"event":"result","data":2}`, ""},
		"not promised":     {Schedule{}, nil, false, `{"event":"result","data":-1}`, ""},
		"the parent goes":  {Schedule{Stalls: true}, nil, true, "", ""},
		"told of nonsense": {Schedule{Stalls: true}, "nonsense", false, "", "decoding stalls message"},
	} {
		fromParent, toChild := io.Pipe()
		fromChild, toParent := io.Pipe()
		ran := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			defer toParent.Close()
			ended <- WorkThenStalls(t.Context(), NewConn(fromParent, toParent), Wants{Stalls: true},
				func(context.Context, Schedule) (*int, error) { close(ran); return new(int), nil },
				func(r *int, s *Stalls) error {
					if *r = -1; s != nil {
						*r = len(s.Spans)
					}
					return nil
				})
		}()
		lines := bufio.NewScanner(fromChild)
		if !lines.Scan() || lines.Text() != `{"event":"ready","data":{"stalls":true}}` {
			t.Fatalf("%s: it said %s", name, lines.Text())
		}
		parent := NewConn(strings.NewReader(""), toChild)
		if err := parent.Send(Start, c.start); err != nil {
			t.Fatal(err)
		}
		<-ran
		if c.stalls != nil {
			if err := parent.Send(Halts, c.stalls); err != nil {
				t.Fatal(err)
			}
		}
		if c.goes {
			toChild.Close()
		}
		lines.Scan()
		if lines.Text() != c.says {
			t.Errorf("%s: it said %q", name, lines.Text())
		}
		toChild.Close()
		if err := <-ended; c.want == "" && err != nil ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFinishFails: an error of the last step is sent, like one of the run.
func TestFinishFails(t *testing.T) {
	broken := errors.New("broken")
	input, keep := io.Pipe()
	defer keep.Close()
	go func() { _ = NewConn(strings.NewReader(""), keep).Send(Start, Schedule{}) }()
	err := WorkThenStalls(t.Context(), NewConn(input, io.Discard), Wants{},
		func(context.Context, Schedule) (int, error) { return 1, nil },
		func(int, *Stalls) error { return broken })
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}
