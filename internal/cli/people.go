package cli

import (
	"context"
	"errors"
	"io"

	"tare/internal/experiment/role"
)

// forPeople runs a role as a command of its own until ctx ends, and prints what it says: there is no parent that would
// read it.
func forPeople(
	ctx context.Context, w io.Writer, print func(io.Writer, role.Message) error,
	run func(context.Context, *role.Conn) error,
) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	input, endInput := io.Pipe() // never written: here only a signal ends it
	defer endInput.Close()
	said, says := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, role.NewConn(input, says))
		says.Close()
		ended <- err
	}()
	var failed error
	for conn := role.NewConn(said, io.Discard); failed == nil && !unheard(w); {
		var m role.Message
		if m, failed = conn.Receive(); failed == nil {
			failed = print(w, m)
		}
	}
	if errors.Is(failed, io.EOF) {
		failed = nil
	}
	said.Close() // should printing have failed, the role neither hangs on what it says nor goes on unheard
	stop()
	return errors.Join(<-ended, failed)
}
