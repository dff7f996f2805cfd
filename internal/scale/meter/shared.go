package meter

import (
	"sync"
	"time"

	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/witness"
)

// Shared holds what the meters of one process have in common: programs adapted to this kernel, whose loading
// temporarily takes megabytes of memory, and the measured costs of looks and of run statistics. The first meter that
// needs a part creates it. The zero value is ready to use. The caller must close it after the meters.
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

// measure returns the cost in seconds, and measures it first if it is unknown. It is nil on error.
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
