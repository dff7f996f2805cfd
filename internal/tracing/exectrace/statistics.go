package exectrace

import (
	"encoding/json"
	"fmt"
)

// Statistics account for every exec that the program saw: Seen = Delivered + Lost + Pending. The fields are numbers of
// events since the tracer was attached.
type Statistics struct {
	Event       string `json:"event,omitempty"` // "statistics" if the line is in the log, among other messages
	Seen        uint64 `json:"seen"`            // by the program, after the filter
	Delivered   uint64 `json:"delivered"`       // written; with Count, counted
	Lost        uint64 `json:"lost"`            // at all stages together
	LostReserve uint64 `json:"lost_reserve"`    // the ring had no room
	LostReader  uint64 `json:"lost_reader"`     // the record was invalid
	LostOutput  uint64 `json:"lost_output"`     // the write failed, or an earlier one had
	Pending     uint64 `json:"pending"`         // not delivered yet; 0 at the end
	Truncated   uint64 `json:"truncated"`       // arguments cut at Options.Args
	// Unreadable counts events whose arguments or file name were not in memory. They are delivered, and marked.
	Unreadable uint64 `json:"unreadable"`
	// Missed is the number of execs on the whole machine that were not seen because the program was already running on the
	// same CPU. The kernel skips such a run (for tracepoints, since Linux 6.1). Missed is nil if it cannot be read.
	Missed *uint64 `json:"missed,omitempty"`
}

// statistics returns the current statistics. It takes this process's counts before the program's, so that Delivered
// never exceeds Seen.
func (t *tracer) statistics() Statistics {
	s := Statistics{
		Delivered: t.delivered, LostReader: t.lostReader, LostOutput: t.lostOutput,
		Truncated: t.truncated, Unreadable: t.unreadable,
	}
	s.Seen, s.LostReserve = t.kernel.counted()
	s.Lost = s.LostReserve + s.LostReader + s.LostOutput
	s.Pending = s.Seen - s.Lost - s.Delivered
	return s
}

// tell writes the statistics to the log.
func (t *tracer) tell() {
	s := t.statistics()
	s.Event, s.Missed = "statistics", t.kernel.missed()
	t.toldLost = s.Lost
	fmt.Fprintf(t.log, "%s\n", line(s))
}

// count writes the totals to the output. If the line cannot be written, the events since the last line are lost.
func (t *tracer) count() {
	if t.failed != nil {
		return
	}
	s := t.statistics()
	s.Missed = t.kernel.missed()
	if _, err := t.out.Write(append(line(s), '\n')); err != nil {
		t.fail(err)
		t.lostOutput += t.delivered - t.counted
		t.delivered = t.counted
		return
	}
	t.counted = t.delivered
}

func line(s Statistics) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // encoding numbers and one word cannot fail
	}
	return b
}
