package measured

import "tare/internal/experiment/record"

// Producer is a guest that makes files from the trials of a whole run, such as a manifest. They are written next to
// the report.
type Producer interface {
	Produce(run record.Run, trials []record.Trial) []Product
}

// Product is a file that a guest makes from a run.
type Product struct {
	File string // name in the run's directory
	Text string // empty if the trials do not support such a file, which is then not written
	Says string // describes its contents, or why it is not written, in one sentence without a full stop
}
