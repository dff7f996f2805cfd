package nginx

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	"tare/internal/mesh/sidecar"
)

// mostOwn bounds what nginx says of itself, in bytes.
const mostOwn = 4 << 10

// Own is what stub_status says, by the names that it has in nginx's documentation.
func (proxy) Own(ctx context.Context, p sidecar.Place) (map[string]float64, error) {
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return sidecar.DialIn(ctx, p.Dir, statusFile)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://nginx/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("asking nginx: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostOwn))
	if err != nil {
		return nil, fmt.Errorf("reading what nginx says: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking nginx: the answer was status %d", resp.StatusCode)
	}
	return parseStatus(string(text)), nil
}

// parseStatus reads the four lines of stub_status (ngx_http_stub_status_module).
func parseStatus(text string) map[string]float64 {
	own := map[string]float64{}
	words := strings.Fields(text)
	set := func(name, value string) {
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			own[name] = v
		}
	}
	for i, word := range words {
		name := strings.ToLower(strings.TrimSuffix(word, ":"))
		switch word {
		case "connections:", "Reading:", "Writing:", "Waiting:":
			if name == "connections" {
				name = "active connections"
			}
			if i+1 < len(words) {
				set(name, words[i+1])
			}
		case "requests":
			for n, name := range []string{"accepts", "handled", "requests"} {
				if i+1+n < len(words) {
					set(name, words[i+1+n])
				}
			}
		}
	}
	return own
}
