package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"tare/internal/lib/pace"
)

// edge is a reading of the number of TCP connections opened so far.
type edge struct {
	at     int64 // CLOCK_MONOTONIC, nanoseconds
	opened uint64
	err    error
}

// readAt takes one reading at each of two times of CLOCK_MONOTONIC, or as soon as possible after it.
func readAt(ctx context.Context, from, to int64) (edges [2]edge) {
	for i, at := range []int64{from, to} {
		if edges[i].err = pace.Sleep(ctx, time.Duration(at-pace.Now())); edges[i].err == nil {
			edges[i].opened, edges[i].err = activeOpens("/proc")
			edges[i].at = pace.Now()
		}
	}
	return edges
}

// opened returns the number of connections that were opened between two readings, and the seconds between the readings.
// It returns nil if one of the readings failed, or if the counter decreased.
func opened(edges [2]edge) (*uint64, float64) {
	if edges[0].err != nil || edges[1].err != nil || edges[1].opened < edges[0].opened {
		return nil, 0
	}
	return new(edges[1].opened - edges[0].opened), float64(edges[1].at-edges[0].at) / 1e9
}

// activeOpens reads TCP's counter ActiveOpens: how many connections have gone from CLOSED to SYN-SENT since the network
// namespace was created (RFC 4022; snmp_seq_show_tcp_udp in net/ipv4/proc.c).
func activeOpens(proc string) (uint64, error) {
	var counted procfs.ProcSnmp
	fs, err := procfs.NewFS(proc)
	if err == nil {
		var self procfs.Proc
		if self, err = fs.Self(); err == nil {
			counted, err = self.Snmp()
		}
	}
	if err == nil && counted.ActiveOpens == nil {
		err = errors.New("the kernel does not report it")
	}
	if err != nil {
		return 0, fmt.Errorf("reading how many connections were opened: %w", err)
	}
	return uint64(*counted.ActiveOpens), nil
}
