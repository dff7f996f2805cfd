package exectrace

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// clock converts the kernel's time since boot to the time of day.
type clock struct {
	offset int64 // nanoseconds from CLOCK_BOOTTIME to CLOCK_REALTIME
	read   int64 // time of day when the clocks were last read, ns
	second int64 // the second for which text was formatted
	text   []byte
	table  bool // local time of day to the microsecond; otherwise RFC 3339 in UTC to the nanosecond
}

// set must be called before the events of a batch are formatted. It reads the clocks at most once per second; once is
// not enough, because the time of day may be changed.
func (c *clock) set() {
	now := time.Now().UnixNano()
	if since := now - c.read; c.read != 0 && since >= 0 && since < int64(time.Second) {
		return
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		panic(fmt.Sprintf("reading CLOCK_BOOTTIME: %v", err)) // cannot fail: Linux has had this clock since 2.6.39
	}
	c.read, c.offset = now, now-boot.Nano()
}

// append formats a time in nanoseconds since boot. The part that is the same for a whole second is formatted once.
func (c *clock) append(b []byte, boot uint64) []byte {
	t := int64(boot) + c.offset
	second, nanos := t/1e9, t%1e9
	if nanos < 0 {
		second, nanos = second-1, nanos+1e9
	}
	if second != c.second || c.text == nil {
		c.second = second
		if c.table {
			c.text = time.Unix(second, 0).AppendFormat(c.text[:0], "15:04:05.")
		} else {
			c.text = time.Unix(second, 0).UTC().AppendFormat(c.text[:0], "2006-01-02T15:04:05.")
		}
	}
	b = append(b, c.text...)
	digits := 9
	if c.table {
		digits = 6
	}
	for unit := int64(1e8); digits > 0; digits-- {
		b = append(b, byte('0'+nanos/unit%10))
		unit /= 10
	}
	if !c.table {
		b = append(b, 'Z')
	}
	return b
}
