package measured

import "tare/internal/experiment/record"

// Producer is a guest that makes files of a whole run, such as a manifest, from what its trials tell. They are written
// beside the report.
type Producer interface {
	Produce(run record.Run, trials []record.Trial) []Product
}

// Product is a file that a guest makes of a run.
type Product struct {
	File string // name in the run's directory
	Text string
	Says string // what is in it, one sentence without a full stop
}
