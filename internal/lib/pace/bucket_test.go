package pace

import (
	"testing"
	"time"
)

func TestBucket(t *testing.T) {
	const second = int64(time.Second)
	b := NewBucket(2, 10, 100*second)
	if wait := b.Take(10, 100*second); wait != 0 {
		t.Errorf("all that there is: wait %v", wait)
	}
	if b.TryTake(100 * second) {
		t.Error("there was one more")
	}
	if wait := b.Take(3, 100*second); wait != 1500*time.Millisecond {
		t.Errorf("3 more at 2 a second: wait %v", wait)
	}
	if left := b.Left(102 * second); left != 1 {
		t.Errorf("after 2 s there are %g", left)
	}
	if left := b.Left(50 * second); left != 1 {
		t.Errorf("before that there are %g", left)
	}
	if !b.TryTake(102*second) || b.TryTake(102*second) {
		t.Error("there is just one")
	}
	if b.Full(106*second) || !b.Full(107*second) || b.Left(1000*second) != 10 {
		t.Errorf("it is full after 5 s, with 10: %+v", b)
	}
	if never := NewBucket(0, 1, 0); !never.TryTake(0) || never.TryTake(1000*second) {
		t.Error("at no rate it fills")
	}
}
