package controlplane

import (
	"fmt"
	"strings"
	"sync"

	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// How much of what data planes refuse is logged: so many refusals at once, and so many per second for long, of so many
// bytes each.
const (
	refusalsAtOnce    = 200
	refusalsPerSecond = 20
	refusalBytes      = 2 << 10
	refuserBytes      = 256 // of the id of the data plane, and of the type
)

// refusals bounds the log of what data planes refuse: one could refuse all the time, with megabytes of reasons.
type refusals struct {
	mu     sync.Mutex
	logged pace.Bucket
	hidden int // since the last one that was logged
}

func newRefusals() *refusals {
	return &refusals{logged: pace.NewBucket(refusalsPerSecond, refusalsAtOnce, pace.Now())}
}

// line is what is logged of a refusal; false: nothing is, there were too many.
func (r *refusals) line(a Answer) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.logged.TryTake(pace.Now()) {
		r.hidden++
		return "", false
	}
	reason := a.Refused
	if len(reason) > refusalBytes {
		reason = strings.ToValidUTF8(reason[:refusalBytes], "") + "..."
	}
	line := fmt.Sprintf("%s refuses %s: %s", text.ClipLine(a.Node, refuserBytes),
		text.ClipLine(a.TypeURL[strings.LastIndexByte(a.TypeURL, '.')+1:], refuserBytes), reason)
	if r.hidden > 0 {
		line += fmt.Sprintf("\n%d refusals before this one are not shown", r.hidden)
		r.hidden = 0
	}
	return line, true
}
