package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tare/internal/mesh/proxy/config"
	"tare/internal/mesh/xds"
	"tare/internal/mesh/xds/translate"
)

// gated answers look-ups once its gate is open.
type gated struct {
	gate  chan struct{}
	asked chan string
}

func (g gated) Lookup(ctx context.Context, host string) (list []netip.Addr, _ time.Duration, _ error) {
	g.asked <- host
	select {
	case <-g.gate:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	for i := range 1000 {
		list = append(list, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	slices.Reverse(list)
	return list, 0, nil
}

// Look-ups of many clusters wait for each other, and keep a bounded part of an answer.
func TestLookups(t *testing.T) {
	const clusters = 40
	synctest.Test(t, func(t *testing.T) {
		g := gated{make(chan struct{}), make(chan string, 2*clusters)}
		s := newSource(nil, false) // nothing is put to work: it knows none of the clusters
		s.lookups = newLookups(g)
		ctx, stop := context.WithCancel(t.Context())
		for i := range clusters {
			c := &config.Cluster{Cluster: &translate.Cluster{}}
			c.Hosts, c.Refresh = []string{fmt.Sprint("host", i)}, time.Hour
			s.lookUp(ctx, &known{Cluster: c})
		}
		synctest.Wait()
		if n := len(g.asked); n != xds.MaxLookups {
			t.Errorf("%d look-ups run at a time, want %d", n, xds.MaxLookups)
		}
		close(g.gate)
		synctest.Wait()
		if n := len(g.asked); n != clusters {
			t.Errorf("%d hosts were looked up, want %d", n, clusters)
		}
		list, err := s.lookups.find(ctx, "host")
		if err != nil || len(list) != xds.MaxAddresses || cap(list) >= 1000 || list[0] != netip.MustParseAddr("10.0.0.0") {
			t.Errorf("%d addresses (%v), want the first %d", len(list), err, xds.MaxAddresses)
		}
		stop()
		s.running.Wait()
	})
}
