package listen

import (
	"net"
	"sync"
	"time"
)

// saysEvery is how often a bounded listener says at most that it turns connections away.
const saysEvery = 10 * time.Second

// AtMost is a listener with no more than so many connections open: each further one is closed as soon as it is
// accepted, for in the kernel's queue it would wait without a word. It calls turned at the first, and every 10 s at
// most, with how many there were since the call before.
func AtMost(l net.Listener, most int, turned func(connections int)) net.Listener {
	return &bounded{Listener: l, most: most, turned: turned}
}

type bounded struct {
	net.Listener
	most   int
	turned func(int)

	mu   sync.Mutex
	open int
	away int // turned away since said
	said time.Time
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.admit() {
			return &admitted{Conn: c, by: b}, nil
		}
		_ = c.Close() // its peer learns by the end of the connection
	}
}

// admit says whether one more connection may be open, and says so where it may not.
func (b *bounded) admit() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open < b.most {
		b.open++
		return true
	}
	b.away++
	if now := time.Now(); now.Sub(b.said) >= saysEvery {
		b.turned(b.away)
		b.away, b.said = 0, now
	}
	return false
}

type admitted struct {
	net.Conn
	by   *bounded
	once sync.Once
}

// Close implements net.Conn.
func (a *admitted) Close() error {
	a.once.Do(func() {
		a.by.mu.Lock()
		defer a.by.mu.Unlock()
		a.by.open--
	})
	return a.Conn.Close()
}
