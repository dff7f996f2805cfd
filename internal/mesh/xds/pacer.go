package xds

import "time"

// How busy a control plane can keep the client: once the client has processed responses for busyBurst, it does so for
// at most busyShare of the time, and rests in between. The time in Apply does not count: it is the data plane's, and a
// measured push waits for it.
const (
	busyBurst = time.Second
	busyShare = 2.0 / 3
)

// pacer makes the client stop reading responses for a while after it was busy with some. gRPC's flow control then
// slows the control plane down.
type pacer struct {
	spent time.Duration // work that has not been paid off by rest
	at    time.Time     // the time of spent
}

// owed returns the work that is not paid off at a time.
func (p *pacer) owed(now time.Time) time.Duration {
	return max(0, p.spent-time.Duration(busyShare*float64(now.Sub(p.at))))
}

// worked records work that has ended now.
func (p *pacer) worked(now time.Time, work time.Duration) { p.spent, p.at = p.owed(now)+work, now }

// rests reports whether the client must not read yet.
func (p *pacer) rests(now time.Time) bool { return p.owed(now) > busyBurst }
