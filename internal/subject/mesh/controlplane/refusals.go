package controlplane

import (
	"fmt"
	"strings"
	"sync"

	"tare/internal/pace"
	"tare/internal/printable"
)

// How much of what data planes refuse is logged: so many refusals at once, and so many per second for long, of so many
// bytes each.
const (
	refusalsAtOnce    = 200
	refusalsPerSecond = 20
	refusalBytes      = 16 << 10
	refuserBytes      = 256 // of the id of the data plane, and of the type
)

// refusals bounds the log of what data planes refuse: one could refuse all the time, with megabytes of reasons.
type refusals struct {
	mu     sync.Mutex
	left   float64
	at     int64 // ns by pace.Now
	hidden int   // since the last one that was logged
}

// line is what is logged of a refusal; false: nothing is, there were too many.
func (r *refusals) line(a Answer) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := pace.Now()
	r.left = min(refusalsAtOnce, r.left+float64(now-r.at)/1e9*refusalsPerSecond)
	r.at = now
	if r.left < 1 {
		r.hidden++
		return "", false
	}
	r.left--
	reason := a.Refused
	if len(reason) > refusalBytes {
		reason = strings.ToValidUTF8(reason[:refusalBytes], "") + "..."
	}
	line := fmt.Sprintf("%s refuses %s: %s", printable.Clip(a.Node, refuserBytes),
		printable.Clip(a.TypeURL[strings.LastIndexByte(a.TypeURL, '.')+1:], refuserBytes), reason)
	if r.hidden > 0 {
		line += fmt.Sprintf("\n%d refusals before this one are not shown", r.hidden)
		r.hidden = 0
	}
	return line, true
}
