package child

import (
	"slices"
	"strings"
	"sync"

	"tare/internal/lib/text"
)

// Tail keeps the end of a process's output. It is safe for concurrent use.
type Tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 16 << 10 // enough for the stacks of a small Go program

// Write accepts p, and never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := p[max(0, len(p)-tailBytes):]
	if over := len(t.buf) + len(end) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	t.buf = append(t.buf, end...)
	return len(p), nil
}

// Text returns the kept output.
func (t *Tail) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(t.buf)), "")
}

// lastLines joins the last lines of a text into one, up to a length that suits a message.
func lastLines(all string) string {
	const most = 1000 // bytes
	var lines []string
	length := 0
	for _, line := range slices.Backward(strings.Split(all, "\n")) {
		line = text.Plain(strings.TrimSpace(line))
		if line == "" {
			continue
		}
		if length += len(line); length > most && len(lines) > 0 {
			break
		}
		if len(line) > most {
			line = "..." + strings.ToValidUTF8(line[len(line)-most:], "")
		}
		lines = append(lines, line)
	}
	slices.Reverse(lines)
	return strings.Join(lines, "; ")
}
