package role

import (
	"context"
	"errors"
	"io"
)

// Play runs serve until it ends, the context does, or the parent closes its end of conn: the application's part in the
// protocol, which receives no other message. Neither the parent's close nor the end of the context is an error; other
// failures to read are.
func Play(ctx context.Context, conn *Conn, serve func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { // ends with the parent's end of the pipe
		_, err := conn.Receive()
		ended <- err
		cancel() // serve ends by it, and what is sent above is there by then
	}()
	if err := serve(ctx); err != nil {
		return err
	}
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	default: // the context ended first; the reader ends with the process
	}
	return nil
}

// Work says ready, waits for the start, runs, sends the result, and stays until the parent closes its end of conn: the
// part in the protocol of a load, and of a subject that works. If the parent closes earlier, that ends the run, and is
// no error.
func Work[R any](ctx context.Context, conn *Conn, ready any, run func(context.Context, Schedule) (R, error)) error {
	return WorkThenStalls(ctx, conn, ready, run, nil)
}

// Together runs functions side by side until ctx ends or one of them returns. It stops the others by their context and
// by end, which it calls once, and returns the errors of all.
func Together(ctx context.Context, end func(), all ...func(context.Context) error) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(all))
	for _, run := range all {
		go func() { ended <- run(ctx) }()
	}
	left := len(all)
	select {
	case <-ctx.Done():
	case err = <-ended:
		left--
	}
	stop()
	end()
	for ; left > 0; left-- {
		err = errors.Join(err, <-ended)
	}
	return err
}

// Says returns a function for Together that sends the ready message, and then waits for the end of its context.
func Says[T any](ready func(T) error, data T) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := ready(data); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
}
