package haproxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"tare/internal/mesh/sidecar"
)

// kept contains HAProxy's names for the values of "show info" that Own returns: connections, requests, TLS connections,
// lookups of TLS sessions, failed allocations, threads and the limit of connections.
var kept = map[string]bool{
	"CumConns": true, "CumReq": true, "CumSslConns": true, "CurrConns": true, "SslCacheLookups": true, "PoolFailed": true,
	"Nbthread": true, "Maxconn": true,
}

// mostOwn is the maximum size of HAProxy's answer, in bytes.
const mostOwn = 64 << 10

// Own returns the values of "show info" that are in kept.
func (proxy) Own(ctx context.Context, p sidecar.Place) (map[string]float64, error) {
	c, err := sidecar.DialIn(ctx, p.Dir, statsFile)
	if err != nil {
		return nil, fmt.Errorf("asking haproxy: %w", err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "show info\n"); err != nil {
		return nil, fmt.Errorf("asking haproxy: %w", err)
	}
	own := map[string]float64{}
	scan := bufio.NewScanner(io.LimitReader(c, mostOwn))
	for scan.Scan() {
		name, text, _ := strings.Cut(scan.Text(), ": ")
		if v, err := strconv.ParseFloat(text, 64); err == nil && kept[name] {
			own[name] = v
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("reading haproxy's answer: %w", err)
	}
	return own, nil
}
