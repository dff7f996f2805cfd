package xds

import "time"

// How busy a control plane can keep the client: once it has read responses for busyBurst, it reads for busyShare of the
// time at most, and rests in between. What Apply takes does not count: it is the data plane's, and whoever pushes waits
// for it.
const (
	busyBurst = time.Second
	busyShare = 2.0 / 3
)

// pacer has the client read no responses for a while after it was busy with some. gRPC's flow control then holds the
// control plane back.
type pacer struct {
	spent time.Duration // work that is not paid off
	at    time.Time     // when that was
}

// owed is the work that is not paid off at a time.
func (p *pacer) owed(now time.Time) time.Duration {
	return max(0, p.spent-time.Duration(busyShare*float64(now.Sub(p.at))))
}

// worked takes note of work that has ended now.
func (p *pacer) worked(now time.Time, work time.Duration) { p.spent, p.at = p.owed(now)+work, now }

// rests says whether nothing is to be read yet.
func (p *pacer) rests(now time.Time) bool { return p.owed(now) > busyBurst }
