package role

import (
	"context"
	"errors"
	"io"
)

// Play runs an application: it calls serve, and ends serve's context when ctx ends or the parent closes its end of
// conn. The parent sends no messages to applications. Neither the parent's close nor the end of ctx is an error; other
// read failures are.
func Play(ctx context.Context, conn *Conn, serve func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { // ends when the parent closes the pipe
		_, err := conn.Receive()
		ended <- err
		cancel() // this ends serve; err is in the channel by then
	}()
	if err := serve(ctx); err != nil {
		return err
	}
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	default: // the parent has not closed; the goroutine ends with the process
	}
	return nil
}

// Work runs a load, or a subject that works by itself, without a load: it sends the ready message, waits for the start,
// calls run, sends the result, and waits until the parent closes its end of conn. If the parent closes earlier, Work
// ends without an error.
func Work[R any](ctx context.Context, conn *Conn, ready any, run func(context.Context, Schedule) (R, error)) error {
	return WorkThenStalls(ctx, conn, ready, run, nil)
}

// Together runs functions concurrently until ctx ends or one of them returns. It then cancels the context of the
// others, calls end once, waits for them, and returns all errors joined.
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

// Says returns a function for Together. That function passes data to ready, which sends the ready message, and then
// waits for the end of its context.
func Says[T any](ready func(T) error, data T) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := ready(data); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
}
