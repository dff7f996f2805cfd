package exec

import (
	"context"
	"time"
)

// Scope is the set of execs that a deliverer delivers. Records use its value.
type Scope string

// The scopes.
const (
	ScopeGroup   Scope = "group"   // those in the load's control group
	ScopeMachine Scope = "machine" // those of the whole machine
)

// Said is what has been delivered since the deliverer began, and what it reports as lost.
type Said struct {
	Delivered int64
	Lost      int64
	Knows     bool // it has reported how many it delivered; lines are always known
	Says      bool // it has reported how many it lost
}

// Deliverer is a subject that delivers the load's events: a tracer. It registers with the load's Counting when it
// joins the trial (Deliver), and Counting compares what it delivers with the kernel's count.
type Deliverer interface {
	// Scope returns which execs it delivers.
	Scope() Scope

	// Said returns what it has delivered so far.
	Said(context.Context) (Said, error)

	// CPUSeconds returns the CPU time that the kernel has charged to it so far; nil if unknown.
	CPUSeconds() *float64

	// Waits returns the longest time after the load during which remaining events are waited for, and the time after
	// the load's end from which on an event is late.
	Waits() (drain, late time.Duration)

	// Stop asks it to deliver what it still has and to end, and waits until it has. used is its CPU time in seconds
	// since the offset was read; nil if unknown.
	Stop(ctx context.Context, used *float64) error

	// Unknown returns why it is unknown how many events it delivered, if Said never reported a number.
	Unknown() error
}
