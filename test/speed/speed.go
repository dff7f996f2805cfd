// Package speed scales deadlines of tests by how slow the machine is.
//
// Only one kind of test needs it: one in which something else must happen before a deadline under test, such as an
// answer before the silence that ends a connection. A guard against hanging is 10 seconds or longer instead, because it
// matters only on failure; and a deadline that nothing competes with passes on every machine, however late.
// TestDeadlines finds the deadlines of tests that are of none of these kinds.
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

// maxFactor limits the measured factor, so that a test that waits for its deadline does not wait for minutes. The
// factor in Variable can be larger.
const maxFactor = 30

// The constants of the measurement: a quiet machine takes about a quarter of the time round for each round.
const (
	rounds = 8
	round  = 8 * time.Millisecond // a round of this length or less counts as fast
	steps  = 1 << 20              // of the work in a round
)

// Scale returns a deadline that is d on a machine that is fast and quiet, and a multiple of d on another one.
func Scale(d time.Duration) time.Duration { return time.Duration(factor()) * d }

// factor returns the factor of this machine. It is measured once in a process, at the first use.
var factor = sync.OnceValue(func() int {
	least, _ := strconv.Atoi(os.Getenv(Variable)) // 0 if the variable is not set
	return scale(typical(slowest), least)
})

// typical returns the median of three measurements, so that one in which the machine stood still does not count.
func typical(measure func() time.Duration) time.Duration {
	all := []time.Duration{measure(), measure(), measure()}
	slices.Sort(all)
	return all[1]
}

// scale returns the factor of a machine whose slowest round took the given time, but at least the factor least.
func scale(slowest time.Duration, least int) int {
	return max(1, least, min(int((slowest+round-1)/round), maxFactor))
}

// slowest returns the time of the slowest of some rounds. Each works on the CPU and then wakes another thread, which
// shows both a slow CPU and one that others hold.
func slowest() (longest time.Duration) {
	wake, woken := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
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
