package kernelmesh

import (
	"fmt"
	"maps"
	"slices"
)

// Stats are the counters of a data plane since it was loaded.
type Stats struct {
	Programs []ProgramStats `json:"programs"`
	Clusters []ClusterStats `json:"clusters"` // that are there now, by name; of a services file each service is one
}

// ProgramStats are the runs of one program by outcome. Every run has one.
type ProgramStats struct {
	Name         string `json:"name"`
	Matched      uint64 `json:"matched"`      // acted: rewrote an address, counted a connection
	Passed       uint64 `json:"passed"`       // nothing matched
	NoEndpoint   uint64 `json:"no_endpoint"`  // refused: a service matched that nothing can serve
	Denied       uint64 `json:"denied"`       // by RBAC
	Overflow     uint64 `json:"overflow"`     // refused: a cluster has as many connections as it may
	Unconfigured uint64 `json:"unconfigured"` // refused: there was no configuration yet
}

// runs are all of them.
func (p ProgramStats) runs() uint64 {
	return p.Matched + p.Passed + p.refused()
}

func (p ProgramStats) refused() uint64 { return p.NoEndpoint + p.Denied + p.Overflow + p.Unconfigured }

// ClusterStats are the counters of one cluster since it came.
type ClusterStats struct {
	Name       string `json:"name"`
	Matched    uint64 `json:"matched"`     // connections and, for unconnected UDP, datagrams given to an endpoint
	NoEndpoint uint64 `json:"no_endpoint"` // the same, refused for want of one
	Overflow   uint64 `json:"overflow"`    // connections refused because as many were open as may be

	// TCP connections.
	Opened      uint64 `json:"opened"` // first SYN sent
	Established uint64 `json:"established"`
	Closed      uint64 `json:"closed"` // of the established ones
	Failed      uint64 `json:"failed"` // opened and never established
}

// totals are the counters at one number.
type totals struct {
	matched, noEndpoint, overflow       uint64
	opened, established, closed, failed uint64
}

// counterOrder is enum program of bpf/kernelmesh.c.
var counterOrder = []string{
	snapshotProgKmConnect4, snapshotProgKmConnect6, snapshotProgKmSendmsg4, snapshotProgKmSendmsg6, snapshotProgKmRecvmsg4,
	snapshotProgKmRecvmsg6, snapshotProgKmGetpeername4, snapshotProgKmGetpeername6, snapshotProgKmSockops,
}

// Stats reads the counters. They go on while they are read: numbers of different lines may differ by what happened
// meanwhile.
func (d *DataPlane) Stats() (Stats, error) {
	var stats Stats
	for i, name := range counterOrder {
		if d.programs[name] == nil {
			continue // not loaded
		}
		var perCPU []snapshotProgramCounters
		if err := d.maps[snapshotMapKmProgCounts].Lookup(uint32(i), &perCPU); err != nil {
			return stats, fmt.Errorf("reading the counters of %s: %w", name, err)
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
		stats.Programs = append(stats.Programs, p)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	stats.Clusters = make([]ClusterStats, 0, len(d.clusters))
	for _, name := range slices.Sorted(maps.Keys(d.clusters)) {
		id := d.clusters[name]
		now, gone := d.shared.totals(id), d.gone[id]
		stats.Clusters = append(stats.Clusters, ClusterStats{
			Name: name, Matched: now.matched - gone.matched, NoEndpoint: now.noEndpoint - gone.noEndpoint,
			Overflow: now.overflow - gone.overflow,
			Opened:   now.opened - gone.opened, Established: now.established - gone.established,
			Closed: now.closed - gone.closed,
			Failed: now.failed - gone.failed,
		})
	}
	return stats, nil
}
