package nginx

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"tare/internal/mesh/sidecar"
)

// mostOwn is the maximum size of nginx's answer, in bytes.
const mostOwn = 4 << 10

// Own returns the values of stub_status, keyed by their names in nginx's documentation, in lower case.
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
		return nil, fmt.Errorf("reading nginx's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking nginx: the answer was status %d", resp.StatusCode)
	}
	return parseStatus(string(text)), nil
}

// parseStatus parses the four lines of stub_status (ngx_http_stub_status_module). The result is empty for any other
// text.
func parseStatus(text string) map[string]float64 {
	names := []string{"active connections", "accepts", "handled", "requests", "reading", "writing", "waiting"}
	values := make([]float64, len(names))
	var to []any
	for i := range values {
		to = append(to, &values[i])
	}
	own := map[string]float64{}
	const page = "Active connections: %g \nserver accepts handled requests\n %g %g %g \n" +
		"Reading: %g Writing: %g Waiting: %g"
	if _, err := fmt.Sscanf(text, page, to...); err == nil {
		for i, name := range names {
			own[name] = values[i]
		}
	}
	return own
}
