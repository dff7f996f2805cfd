package meter

import (
	"sync"
	"time"

	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/witness"
)

// Shared holds what the meters of one process have in common: programs that are fitted to this kernel, which takes
// megabytes of memory for a moment, and what looks and run statistics cost here. The first meter that needs a part
// makes it. The zero value is ready. Close it after the meters.
type Shared struct {
	mu        sync.Mutex // held while a meter is opened
	iterators bpf.Iterators
	witness   witness.Program
	lookCost  cost // of one look of the witness
	statsCost cost // of run statistics, for one run of a program

	leanLookCost cost // of one look of a lean meter's witness
}

// Close unloads the programs.
func (s *Shared) Close() { s.iterators.Close() }

// cost is a cost that is measured once.
type cost struct{ seconds *float64 } // nil until it is known

// measure returns the cost in seconds, which it measures unless it is known. It is nil with an error.
func (c *cost) measure(how func() (time.Duration, error)) (*float64, error) {
	if c.seconds == nil {
		d, err := how()
		if err != nil {
			return nil, err
		}
		c.seconds = new(d.Seconds())
	}
	return c.seconds, nil
}
