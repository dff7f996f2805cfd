package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"tare/internal/subject/mesh/sidecar"
)

// told are the counters that are kept, by Envoy's names or by how these end: what came, what failed, what its TLS did,
// what it thinks it holds, and what its control plane sent.
var told = []string{
	".downstream_cx_total", ".downstream_rq_total", ".upstream_cx_total", ".upstream_rq_total", ".upstream_cx_destroy",
	".upstream_rq_retry", ".upstream_rq_pending_overflow", ".upstream_cx_overflow", ".ssl.handshake",
	".ssl.connection_error", ".ssl.fail_verify_error", ".ssl.fail_verify_san", ".rbac.allowed", ".rbac.denied",
	".update_success", ".update_rejected", "server.memory_allocated", "server.memory_physical_size", "server.concurrency",
	"control_plane.connected_state",
}

const (
	maxStatistics = 8 << 20 // bytes of Envoy's answer: far more than a sidecar of one service has
	maxAddress    = 256     // bytes of the file with the address of its administration
)

// Own asks Envoy's administration.
func (proxy) Own(ctx context.Context, p sidecar.Place) (map[string]float64, error) {
	address, err := admin(p.Dir)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/stats?format=json", nil)
	if err != nil {
		return nil, err
	}
	// It keeps no connection to what is weighed, and goes nowhere else.
	asker := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: p.Dial}}
	resp, err := asker.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for its statistics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking Envoy for its statistics: status %d", resp.StatusCode)
	}
	return decode(io.LimitReader(resp.Body, maxStatistics))
}

// decode picks what is told out of Envoy's statistics.
func decode(r io.Reader) (map[string]float64, error) {
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
		for _, end := range told {
			if strings.HasSuffix(s.Name, end) {
				own[s.Name] = v
			}
		}
	}
	return own, nil
}

// admin is the address of Envoy's administration, as Envoy wrote it.
func admin(dir string) (string, error) {
	f, err := os.Open(filepath.Join(dir, adminFile))
	if err != nil {
		return "", fmt.Errorf("finding Envoy's administration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxAddress))
	if err != nil {
		return "", fmt.Errorf("finding Envoy's administration: %w", err)
	}
	at, err := netip.ParseAddrPort(strings.TrimSpace(string(text)))
	if err != nil || !at.Addr().IsLoopback() {
		return "", fmt.Errorf("the address of the administration that Envoy wrote is %q", text)
	}
	return at.String(), nil
}
