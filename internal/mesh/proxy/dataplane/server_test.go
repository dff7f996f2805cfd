package dataplane

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// counted is a connection that counts that it was closed.
type counted struct {
	net.Conn
	closed *atomic.Int64
}

func (c counted) Close() error {
	c.closed.Add(1)
	return nil
}

// A connection that is given to a feed which ends is closed, whether it was given before, after or meanwhile.
func TestFeedEnds(t *testing.T) {
	const given = 8 // fewer than wait in a feed, so that nobody needs to accept
	for name, run := range map[string]func(f *feed, give func()){
		"before":    func(f *feed, give func()) { give(); f.Close() },
		"after":     func(f *feed, give func()) { f.Close(); give() },
		"meanwhile": func(f *feed, give func()) { var all sync.WaitGroup; all.Go(give); f.Close(); all.Wait() },
	} {
		t.Run(name, func(t *testing.T) {
			for range 1000 {
				f, closed := newFeed(), &atomic.Int64{}
				run(f, func() {
					for range given {
						f.give(counted{closed: closed})
					}
				})
				if n := closed.Load(); n != given {
					t.Fatalf("%d connections of %d were closed", n, given)
				}
			}
		})
	}
}
