package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tare/internal/lib/files"
	"tare/internal/lib/lists"
	"tare/internal/mesh/sidecar"
	"tare/internal/mesh/sidecar/driven"
)

// kept lists the names, or the ends of the names, of the statistics that Own returns. They count connections, requests
// and failures, and describe TLS, memory, clusters, listeners and updates from the control plane.
var kept = []string{
	".downstream_cx_total", ".downstream_rq_total", ".upstream_cx_total", ".upstream_rq_total", ".upstream_cx_destroy",
	".upstream_rq_retry", ".upstream_rq_pending_overflow", ".upstream_cx_overflow", ".ssl.handshake",
	".ssl.connection_error", ".ssl.fail_verify_error", ".ssl.fail_verify_san", ".rbac.allowed", ".rbac.denied",
	".update_success", ".update_rejected", "server.memory_allocated", "server.memory_physical_size", "server.concurrency",
	"control_plane.connected_state", activeClusters, activeListeners,
}

// Gauges of active, starting (warming) and ending (draining) clusters and listeners.
const (
	activeClusters    = "cluster_manager.active_clusters"
	warmingClusters   = "cluster_manager.warming_clusters"
	activeListeners   = "listener_manager.total_listeners_active"
	warmingListeners  = "listener_manager.total_listeners_warming"
	drainingListeners = "listener_manager.total_listeners_draining"
)

const (
	maxStatistics = 64 << 20 // bytes of Envoy's statistics; enough for a sidecar with 10,000 services
	maxMemory     = 64 << 10 // bytes of Envoy's report about its memory
	maxAddress    = 256      // bytes of the file with Envoy's admin address
)

// Own returns statistics from Envoy's admin interface: those in kept, and the values of its allocator (memory). It
// leaves out the statistics of further services.
func (proxy) Own(ctx context.Context, p sidecar.Place) (map[string]float64, error) {
	all, err := statistics(ctx, p, kept)
	if err != nil {
		return nil, err
	}
	if err := memory(ctx, p, all); err != nil {
		return nil, err
	}
	if len(p.Others) > 0 { // further services have no traffic, but many statistics
		mine := "listener." + strings.ReplaceAll(p.Listen, ":", "_") + "."
		maps.DeleteFunc(all, func(name string, _ float64) bool {
			return of(p.Others, name) || strings.HasPrefix(name, "listener.127.") && !strings.HasPrefix(name, mine)
		})
	}
	return all, nil
}

// of reports whether a statistic is about one of the further services: whether an element of its name is the name of
// such a service. others must be sorted by name.
func of(others []sidecar.Other, name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		_, is := slices.BinarySearchFunc(others, part, func(o sidecar.Other, name string) int {
			return strings.Compare(o.Name, name)
		})
		if is {
			return true
		}
	}
	return false
}

// Settled reports whether exactly the clusters and listeners that Envoy should have are active. If not, the error says
// what differs.
func (proxy) Settled(ctx context.Context, p sidecar.Place) (bool, error) {
	plane, err := driven.Of(p)
	if err != nil {
		return false, err
	}
	gauges := []string{activeClusters, warmingClusters, activeListeners, warmingListeners, drainingListeners}
	is, err := statistics(ctx, p, gauges)
	if err != nil {
		return false, err
	}
	want := plane.Told(p)
	const own = 1 // the cluster in Envoy's bootstrap, through which it reaches the control plane
	if is[activeClusters] != float64(want.Clusters+own) || is[activeListeners] != float64(want.Listeners) ||
		is[warmingClusters]+is[warmingListeners]+is[drainingListeners] != 0 {
		return false, fmt.Errorf("%s has %g clusters and %g listeners active, %g and %g warming, and %g listeners draining; "+
			"want %d and %d active", p.Component, is[activeClusters]-own, is[activeListeners],
			is[warmingClusters], is[warmingListeners], is[drainingListeners], want.Clusters, want.Listeners)
	}
	return true, nil
}

// statistics returns Envoy's statistics whose names have one of the endings.
func statistics(ctx context.Context, p sidecar.Place, ends []string) (map[string]float64, error) {
	filter := "(" + strings.Join(lists.Map(ends, regexp.QuoteMeta), "|") + ")$"
	query := url.Values{"format": {"json"}, "filter": {filter}}
	body, err := ask(ctx, p, "/stats?"+query.Encode())
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return decode(io.LimitReader(body, maxStatistics), ends)
}

// memory adds the current values of Envoy's memory allocator to the map to, in bytes, with the keys memory.NAME. They
// are needed because Envoy's statistics about memory are up to 5 s old.
func memory(ctx context.Context, p sidecar.Place, to map[string]float64) error {
	body, err := ask(ctx, p, "/memory")
	if err != nil {
		return err
	}
	defer body.Close()
	var said map[string]string
	if err := json.NewDecoder(io.LimitReader(body, maxMemory)).Decode(&said); err != nil {
		return fmt.Errorf("decoding Envoy's report about its memory: %w", err)
	}
	for name, text := range said {
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			to["memory."+name] = v
		}
	}
	return nil
}

// ask makes a request to Envoy's admin interface. The caller must close the response's body.
func ask(ctx context.Context, p sidecar.Place, path string) (io.ReadCloser, error) {
	address, err := admin(p.Dir)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	// Keep no connection to the measured process open, and use no HTTP proxy.
	asker := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.Dial}}
	resp, err := asker.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin interface: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close() // its content is not needed
		return nil, fmt.Errorf("asking Envoy's admin interface for %s: status %d", path, resp.StatusCode)
	}
	return resp.Body, nil
}

// decode returns the statistics whose names have one of the endings, except those of the admin interface.
func decode(r io.Reader, ends []string) (map[string]float64, error) {
	var all struct {
		Stats []struct {
			Name  string `json:"name"`
			Value any    `json:"value"` // histograms have none
		} `json:"stats"`
	}
	if err := json.NewDecoder(r).Decode(&all); err != nil {
		return nil, fmt.Errorf("decoding Envoy's statistics: %w", err)
	}
	own := map[string]float64{}
	for _, s := range all.Stats {
		v, ok := s.Value.(float64)
		if !ok || strings.HasPrefix(s.Name, "http.admin.") || strings.HasPrefix(s.Name, "listener.admin.") {
			continue
		}
		for _, end := range ends {
			if strings.HasSuffix(s.Name, end) {
				own[s.Name] = v
			}
		}
	}
	return own, nil
}

// admin returns the address of Envoy's admin interface, which Envoy wrote to adminFile.
func admin(dir string) (string, error) {
	text, err := files.Read(filepath.Join(dir, adminFile), maxAddress)
	if err != nil {
		return "", fmt.Errorf("finding Envoy's admin interface: %w", err)
	}
	at, err := netip.ParseAddrPort(strings.TrimSpace(string(text)))
	if err != nil || !at.Addr().IsLoopback() {
		return "", fmt.Errorf("Envoy wrote %q as the address of its admin interface; want a loopback address", text)
	}
	return at.String(), nil
}
