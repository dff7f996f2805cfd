package xds

import "time"

// How busy a control plane can keep the client. Once the client has spent busyBurst on responses, it spends at most the
// fraction busyShare of its time on them, and rests in between. Time spent in Options.Apply does not count, because the
// work there is the data plane's.
const (
	busyBurst = time.Second
	busyShare = 2.0 / 3
)

// pacer makes the client stop reading responses for a while after it has been busy with some. gRPC's flow control then
// slows the control plane down.
type pacer struct {
	spent time.Duration // the work not yet paid off by rest when spent was computed
	at    time.Time     // when spent was computed
}

// owed returns the work that is not yet paid off by rest at the given time.
func (p *pacer) owed(now time.Time) time.Duration {
	return max(0, p.spent-time.Duration(busyShare*float64(now.Sub(p.at))))
}

// worked records a duration of work that ended at the time now.
func (p *pacer) worked(now time.Time, work time.Duration) { p.spent, p.at = p.owed(now)+work, now }

// rests reports whether the client must not read responses yet.
func (p *pacer) rests(now time.Time) bool { return p.owed(now) > busyBurst }
