package kernelmesh

import "fmt"

// ProgramStats are the runs of one program by outcome. Every run has one.
type ProgramStats struct {
	Name         string
	Matched      uint64 // acted: rewrote an address, counted a connection
	Passed       uint64 // nothing matched
	NoEndpoint   uint64 // refused: a service matched that nothing can serve
	Denied       uint64 // by RBAC
	Overflow     uint64 // refused: a cluster has as many connections as it may
	Unconfigured uint64 // refused: there was no configuration yet
}

// runs are all of them.
func (p ProgramStats) runs() uint64 {
	return p.Matched + p.Passed + p.refused()
}

func (p ProgramStats) refused() uint64 { return p.NoEndpoint + p.Denied + p.Overflow + p.Unconfigured }

// counterOrder is enum program of bpf/kernelmesh.c.
var counterOrder = []string{
	snapshotProgKmConnect4, snapshotProgKmConnect6, snapshotProgKmSendmsg4, snapshotProgKmSendmsg6, snapshotProgKmRecvmsg4,
	snapshotProgKmRecvmsg6, snapshotProgKmGetpeername4, snapshotProgKmGetpeername6, snapshotProgKmSockops,
}

// Stats are the counters of the programs since they were loaded. They go on while they are read: numbers of different
// programs may differ by what happened meanwhile.
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
