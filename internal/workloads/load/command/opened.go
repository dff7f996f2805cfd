package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"tare/internal/lib/pace"
)

// edge is a reading of how many TCP connections were ever opened.
type edge struct {
	at     int64 // CLOCK_MONOTONIC, nanoseconds
	opened uint64
	err    error
}

// readAt reads at two times of CLOCK_MONOTONIC, or as soon after as it can.
func readAt(ctx context.Context, from, to int64) (edges [2]edge) {
	for i, at := range []int64{from, to} {
		if edges[i].err = pace.Sleep(ctx, time.Duration(at-pace.Now())); edges[i].err == nil {
			edges[i].opened, edges[i].err = activeOpens("/proc/self/net/snmp")
			edges[i].at = pace.Now()
		}
	}
	return edges
}

// opened is how many connections were opened between two readings, and the seconds between them; nil where one of the
// two could not be read.
func opened(edges [2]edge) (*uint64, float64) {
	if edges[0].err != nil || edges[1].err != nil || edges[1].opened < edges[0].opened {
		return nil, 0
	}
	return new(edges[1].opened - edges[0].opened), float64(edges[1].at-edges[0].at) / 1e9
}

// activeOpens reads ActiveOpens of TCP: connections that went from CLOSED to SYN-SENT since the network namespace was
// made (RFC 4022; snmp_seq_show_tcp_udp in net/ipv4/proc.c).
func activeOpens(file string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("reading how many connections were opened: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			if name == "ActiveOpens" && i < len(f) {
				return strconv.ParseUint(f[i], 10, 64)
			}
		}
	}
	return 0, errors.New("reading how many connections were opened: the kernel does not tell")
}
