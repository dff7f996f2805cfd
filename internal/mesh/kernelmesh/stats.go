package kernelmesh

import "fmt"

// ProgramStats counts the runs of one program by outcome. Every run has one outcome.
type ProgramStats struct {
	Name         string
	Matched      uint64 // rewrote an address, or counted a connection
	Passed       uint64 // nothing matched
	NoEndpoint   uint64 // refused: nothing can serve the matching service
	Denied       uint64 // refused: RBAC denies the connection
	Overflow     uint64 // refused: the cluster has reached its limit of connections
	Unconfigured uint64 // refused: there was no configuration yet
}

// runs returns the number of all runs.
func (p ProgramStats) runs() uint64 {
	return p.Matched + p.Passed + p.refused()
}

func (p ProgramStats) refused() uint64 { return p.NoEndpoint + p.Denied + p.Overflow + p.Unconfigured }

// counterOrder lists the programs in the order of enum program in bpf/kernelmesh.c.
var counterOrder = []string{
	snapshotProgKmConnect4, snapshotProgKmConnect6, snapshotProgKmSendmsg4, snapshotProgKmSendmsg6, snapshotProgKmRecvmsg4,
	snapshotProgKmRecvmsg6, snapshotProgKmGetpeername4, snapshotProgKmGetpeername6, snapshotProgKmSockops,
}

// Stats returns the programs' counters since they were loaded. Programs keep running while the counters are read, so
// the counters of different programs are from slightly different times.
func (d *DataPlane) Stats() ([]ProgramStats, error) {
	var all []ProgramStats
	for i, name := range counterOrder {
		if d.programs[name] == nil {
			continue // not loaded
		}
		var perCPU []snapshotProgramCounters
		if err := d.maps[snapshotMapKmProgCounts].Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("reading the counters of %s: %w", name, err)
		}
		p := ProgramStats{Name: name}
		for _, c := range perCPU {
			p.Matched += c.Matched
			p.Passed += c.Passed
			p.NoEndpoint += c.NoEndpoint
			p.Denied += c.Denied
			p.Overflow += c.Overflow
			p.Unconfigured += c.Unconfigured
		}
		all = append(all, p)
	}
	return all, nil
}
