package exec

import (
	"context"
	"time"
)

// Scope is the set of execs that a deliverer delivers. Records contain its value.
type Scope string

// The scopes.
const (
	ScopeGroup   Scope = "group"   // execs in the load's control group
	ScopeMachine Scope = "machine" // execs of the whole machine
)

// Said is the number of events that a deliverer has delivered since it began, and the number that it reports as lost.
type Said struct {
	Delivered int64
	Lost      int64
	Knows     bool // the deliverer has reported how many events it delivered; always true if its lines are counted
	Says      bool // the deliverer has reported how many events it lost
}

// Deliverer is a subject that delivers the load's events: a tracer. It registers with the load's Counting when it joins
// the trial (Counting.Deliver). Counting compares the delivered events with the kernel's count.
type Deliverer interface {
	// Scope returns which execs the deliverer delivers.
	Scope() Scope

	// Said returns the counts so far.
	Said(context.Context) (Said, error)

	// CountsExit reports whether Said, after Stop, includes the events that were delivered after the request to end.
	CountsExit() bool

	// CPUSeconds returns the CPU time that the kernel has charged to the deliverer so far, or nil if it is unknown.
	CPUSeconds() *float64

	// Waits returns two times after the load's end: how long to wait for remaining events at most, and when events begin
	// to be late.
	Waits() (drain, late time.Duration)

	// Stop asks the deliverer to deliver its remaining events and to end, and waits until it has ended. The argument used
	// is the deliverer's CPU time in seconds since the offset was read, or nil if it is unknown.
	Stop(ctx context.Context, used *float64) error

	// Unknown returns the reason why the number of delivered events is unknown, if Said never reported one.
	Unknown() error
}
