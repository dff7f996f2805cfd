package controlplane

import (
	"fmt"
	"strings"
	"sync"

	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// Limits on the log of refusals: a burst of lines, a rate of lines per second, and the bytes of each reason.
const (
	refusalsAtOnce    = 200
	refusalsPerSecond = 20
	refusalBytes      = 2 << 10
	refuserBytes      = 256 // bytes of the data plane's id, and of the type
)

// refusals limits the log of refusals, because a data plane could refuse continuously, with megabytes of reasons.
type refusals struct {
	mu     sync.Mutex
	logged pace.Bucket
	hidden int // number of refusals since the last one that was logged
}

func newRefusals() *refusals {
	return &refusals{logged: pace.NewBucket(refusalsPerSecond, refusalsAtOnce, pace.Now())}
}

// line returns the log line of a refusal; false if the limits forbid one.
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
