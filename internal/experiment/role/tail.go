package role

import (
	"strings"
	"sync"
)

// Tail keeps the end of what a process writes to standard error: its last words. It is safe for concurrent use.
type Tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 2 << 10

// Write takes p, and never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// Text is what it has kept.
func (t *Tail) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(t.buf)), "")
}
