package microvm

import (
	"math"
	"time"

	"tare/internal/lib/pace"
)

// tscGap is the time over which the counter's rate is measured. The error of the rate is a few millionths.
const tscGap = 20 * time.Millisecond

// tscKHz returns the rate of the time stamp counter in kHz, measured against CLOCK_MONOTONIC, or 0 if that fails.
func tscKHz() uint64 {
	ticks, at := tscNow()
	time.Sleep(tscGap)
	ticks2, at2 := tscNow()
	if at2 <= at || ticks2 <= ticks {
		return 0
	}
	return uint64(math.Round(float64(ticks2-ticks) / float64(at2-at) * 1e6))
}

// tscNow reads the counter and the clock (in ns) at the same time. It reads the clock before and after the counter
// several times, and returns the reading for which the least time passed in between.
func tscNow() (ticks uint64, at int64) {
	best := int64(math.MaxInt64)
	for range 20 {
		before := pace.Now()
		t := readTSC()
		after := pace.Now()
		if after-before < best {
			best, ticks, at = after-before, t, before+(after-before)/2
		}
	}
	return ticks, at
}
