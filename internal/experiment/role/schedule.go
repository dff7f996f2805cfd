package role

import (
	"errors"
	"fmt"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// Schedule is the data of a start message: when the load begins, by this machine's CLOCK_MONOTONIC, in nanoseconds.
// Requests whose intended start lies in [Begin, Begin+Warmup) are warm-up and not counted; those whose intended start
// lies in [Begin+Warmup, Begin+Warmup+Duration) are measured. The parent's window has the same two edges.
type Schedule struct {
	Begin    int64 `json:"begin_ns"`
	Warmup   int64 `json:"warmup_ns"`
	Duration int64 `json:"duration_ns"`

	// Stalls is true if a stalls message follows after the window. It is set only for loads that asked for it in their
	// ready message; they wait for it before they send their result.
	Stalls bool `json:"stalls,omitempty"`

	// Suspended is pace.Suspended when the clocks were read from which Begin was computed, for a role on another machine:
	// its CLOCK_MONOTONIC stops while its machine is suspended, and a window by the time of day does not. nil: it is not
	// checked.
	Suspended *int64 `json:"suspended_ns,omitempty"`
}

// ErrSuspended is the error of a role whose machine was suspended after its schedule was made.
var ErrSuspended = errors.New("the machine was suspended while the trial was set up or ran")

// slept is the shortest suspension that counts. No machine is suspended for less, and readings of clocks take less.
const slept = 10 * time.Millisecond

// awake returns an error if the machine has been suspended since the schedule was made.
func (s Schedule) awake() error {
	if s.Suspended == nil {
		return nil
	}
	if d := time.Duration(pace.Suspended() - *s.Suspended); d > slept {
		return fmt.Errorf("%w, for %v", ErrSuspended, d.Round(time.Millisecond))
	}
	return nil
}

// Window returns when the window begins and ends. A schedule without a window is an error with the code fault.Usage.
func (s Schedule) Window() (begin, end int64, err error) {
	if s.Duration <= 0 || s.Warmup < 0 {
		return 0, 0, fault.New(fault.Usage, "duration", "give a length of time", "the duration is zero")
	}
	begin = s.Begin + s.Warmup
	return begin, begin + s.Duration, nil
}

// CPUTime calls run and estimates this process's CPU time in the window, in seconds: the window's proportional share of
// the CPU time that the process used during the call, which includes the warm-up.
func (s Schedule) CPUTime(run func() error) (float64, error) {
	before, err := pace.CPUTime()
	if err != nil {
		return 0, err
	}
	if err := run(); err != nil {
		return 0, err
	}
	after, err := pace.CPUTime()
	return (after - before) * float64(s.Duration) / float64(s.Warmup+s.Duration), err
}
