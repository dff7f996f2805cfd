package pace

import "time"

// Bucket is a token bucket: it allows an average rate per second, and a burst after a pause. It is not safe for
// concurrent use. Times are those of Now, in nanoseconds; a time before the last one counts as the last one.
type Bucket struct {
	rate, most float64 // tokens per second; maximum burst
	left       float64 // below 0 if more was taken than there was
	at         int64
}

// NewBucket returns a full bucket.
func NewBucket(rate, most float64, now int64) Bucket {
	return Bucket{rate: rate, most: most, left: most, at: now}
}

// Left returns how much may be taken now without waiting.
func (b *Bucket) Left(now int64) float64 {
	if now > b.at {
		b.left = min(b.most, b.left+float64(now-b.at)/1e9*b.rate)
		b.at = now
	}
	return b.left
}

// Full reports whether the bucket is full, so that it is no different from a new one.
func (b *Bucket) Full(now int64) bool { return b.Left(now) >= b.most }

// Take takes n even if less is left, and returns how long to wait before more may be taken.
func (b *Bucket) Take(n float64, now int64) time.Duration {
	b.left = b.Left(now) - n
	return time.Duration(max(0, -b.left) / b.rate * 1e9)
}

// TryTake takes 1 if it is left, and reports whether it was.
func (b *Bucket) TryTake(now int64) bool {
	if b.Left(now) < 1 {
		return false
	}
	b.left--
	return true
}
