// Package serving runs functions that serve until a context ends, as the processes of guests do, for tests.
package serving

import (
	"context"
	"testing"
)

// Start runs serve(ctx, ready) until the test ends, and returns what serve passes to ready. An error that serve returns
// fails the test.
func Start[R any](t testing.TB, serve func(ctx context.Context, ready func(R) error) error) R {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, served := make(chan R, 1), make(chan error, 1)
	go func() {
		served <- serve(ctx, func(r R) error {
			ready <- r
			return nil
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	select {
	case r := <-ready:
		return r
	case err := <-served:
		served <- nil
		t.Fatalf("it ended before it was ready: %v", err)
		panic("unreachable")
	}
}
