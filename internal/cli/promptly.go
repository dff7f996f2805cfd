package cli

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// promptly calls do and returns its error. If the context ends first, it returns at once and leaves do running: the
// caller must then exit the process. It is for work that can be cut off anywhere, such as reading a record or printing.
// Code that changes files or the machine must check the context itself, between steps that must not be cut off.
func promptly(ctx context.Context, do func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// insist lets a second signal end the process at once, after the first has ended the context.
func insist(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, unix.SIGTERM) })
}
