package exec

import (
	"context"
	"time"
)

// Scope is whose execs somebody delivers. Records name it by its word.
type Scope string

// The scopes.
const (
	ScopeGroup   Scope = "group"   // those in the load's control group
	ScopeMachine Scope = "machine" // those of the whole machine
)

// Said is what was delivered since the deliverer began, and what it says it lost.
type Said struct {
	Delivered int64
	Lost      int64
	Knows     bool // it has said how many it delivered; lines are always known
	Says      bool // it has said how many it lost
}

// Deliverer is a subject that delivers the load's events: a tracer. It gives itself to the load's Counting when it
// joins the trial (Deliver), and Counting holds what it delivers against what the kernel counted.
type Deliverer interface {
	// Scope is whose execs it delivers.
	Scope() Scope

	// Said is what it has delivered by now.
	Said(context.Context) (Said, error)

	// CPUSeconds is the CPU time that the kernel has charged to it so far; nil where that is not known.
	CPUSeconds() *float64

	// Waits are the longest time after the load in which what is still to come is waited for, and the time after the
	// load's end from which on what comes is late.
	Waits() (drain, late time.Duration)

	// Stop tells it to deliver what it still has and to end, and waits until it has. used is its CPU time in seconds
	// since the offset was read; nil where that is not known.
	Stop(ctx context.Context, used *float64) error

	// Unknown is why nobody knows how many events it delivered, where Said has none to the end.
	Unknown() error
}
