// Package speed scales deadlines of tests by how slow the machine is.
//
// A test needs it in one case: something else must happen before a deadline that it tests, such as an answer before the
// silence that ends a connection. A guard against hanging is 10 seconds or longer instead, because it matters only on
// failure; and a deadline that nothing competes with passes on every machine, however late. TestDeadlines finds the
// deadlines of tests that are neither.
package speed

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Variable holds the least factor to scale by. test/vm sets it, because an emulated machine stands still for seconds
// now and then, which a short measurement does not see.
const Variable = "TARE_TEST_SLOWDOWN"

// maxFactor keeps a test that waits for its deadline from waiting for minutes.
const maxFactor = 30

// A round of the measurement takes a quiet machine about a quarter of this.
const (
	rounds = 8
	round  = 8 * time.Millisecond
	steps  = 1 << 20
)

// Scale returns a deadline that is d on a machine that is fast and quiet, and a multiple of d on another one.
func Scale(d time.Duration) time.Duration { return time.Duration(factor()) * d }

// factor is measured once in a process, at the first use.
var factor = sync.OnceValue(func() int {
	least, _ := strconv.Atoi(os.Getenv(Variable)) // none is 0
	return scale(typical(slowest), least)
})

// typical is the median of three measurements: a machine that stands still once is in one of them, and is not slow.
func typical(measure func() time.Duration) time.Duration {
	all := []time.Duration{measure(), measure(), measure()}
	slices.Sort(all)
	return all[1]
}

// scale returns the factor of a machine by the time of its slowest round.
func scale(slowest time.Duration, least int) int {
	return max(1, least, min(int((slowest+round-1)/round), maxFactor))
}

// slowest returns the time of the slowest of some rounds. Each works on the CPU and then wakes another thread, which
// shows both a slow CPU and one that others hold.
func slowest() (longest time.Duration) {
	wake, woken := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread() // and ends with it
		for range wake {
			woken <- struct{}{}
		}
	}()
	defer close(wake)
	for range rounds {
		began := time.Now()
		work()
		time.Sleep(time.Millisecond)
		wake <- struct{}{}
		<-woken
		longest = max(longest, time.Since(began))
	}
	return longest
}

var sink uint64 // keeps the compiler from removing the work

// work does a fixed amount of work.
func work() {
	x := uint64(1)
	for range steps {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	sink = x
}
