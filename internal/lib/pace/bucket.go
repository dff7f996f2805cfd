package pace

import "time"

// Bucket is a token bucket: it allows an average rate per second, and a burst after a pause. Only one goroutine may
// use it at a time. Times are those of Now, in nanoseconds; a time before the last one counts as the last one.
type Bucket struct {
	rate, most float64 // per second; at once
	left       float64 // below 0: more was taken than there was
	at         int64
}

// NewBucket makes a bucket that is full.
func NewBucket(rate, most float64, now int64) Bucket {
	return Bucket{rate: rate, most: most, left: most, at: now}
}

// Left is how much may be taken now without waiting.
func (b *Bucket) Left(now int64) float64 {
	if now > b.at {
		b.left = min(b.most, b.left+float64(now-b.at)/1e9*b.rate)
		b.at = now
	}
	return b.left
}

// Full says whether it is as if nothing had ever been taken.
func (b *Bucket) Full(now int64) bool { return b.Left(now) >= b.most }

// Take takes n, whether or not there is as much, and says how long to wait before more may be taken.
func (b *Bucket) Take(n float64, now int64) time.Duration {
	b.left = b.Left(now) - n
	return time.Duration(max(0, -b.left) / b.rate * 1e9)
}

// TryTake takes 1 if there is as much, and says whether there was.
func (b *Bucket) TryTake(now int64) bool {
	if b.Left(now) < 1 {
		return false
	}
	b.left--
	return true
}
