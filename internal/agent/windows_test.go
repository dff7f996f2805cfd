package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tare/internal/lib/param"
	"tare/internal/scale/host/names"
	"tare/internal/scale/remote"
)

func TestParseWindow(t *testing.T) {
	ahead := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339Nano) }
	for _, c := range []struct {
		length, at string
		want       time.Duration // 0: it is refused
	}{
		{"", "", 10 * time.Second}, {"2s", "", 2 * time.Second}, {"5m", "", 5 * time.Minute},
		{"100ms", "", 100 * time.Millisecond},
		{"10s", ahead(30 * time.Second), 10 * time.Second},
		{"-1s", "", 0}, {"1h", "", 0}, {"5m1ns", "", 0}, {"99ms", "", 0}, {"NaN", "", 0}, {"10", "", 0}, {"1e9s", "", 0},
		{"0", "", 0}, {"9223372036854775807ns", "", 0}, {"99999999999h", "", 0}, {"\x00", "", 0},
		{"1s", ahead(-time.Second), 0}, {"1s", ahead(2 * time.Minute), 0}, {"1s", "now", 0},
		{"1s", "0001-01-01T00:00:00Z", 0},
		{"1s", "9999-12-31T23:59:59Z", 0}, {"1s", "2026-11-27", 0},
	} {
		q := url.Values{}
		if c.length != "" {
			q.Set("for", c.length)
		}
		if c.at != "" {
			q.Set("at", c.at)
		}
		d, at, err := parseWindow(httptest.NewRequest(http.MethodGet, "/v1/ledger?"+q.Encode(), nil))
		if (err == nil) != (c.want > 0) || err == nil && d != c.want || err == nil && at.IsZero() != (c.at == "") {
			t.Errorf("for=%q at=%q: %v, %v, %v; want %v", c.length, c.at, d, at, err, c.want)
		}
	}
}

// TestTurnTooLate: a window whose turn comes after its beginning is refused, and the next one has its turn.
func TestTurnTooLate(t *testing.T) {
	c := &configuration{Values: param.Defaults(settings)}
	w := newWindows(c, &weigher{names: names.Open(names.Options{})}, nil)
	_, status, err := w.document(t.Context(), time.Second, time.Now().Add(-time.Millisecond))
	if err == nil || status != http.StatusTooManyRequests {
		t.Errorf("status %d, %v", status, err)
	}
	if len(w.turn) != 1 || len(w.waiting) != 0 || w.m != nil {
		t.Errorf("%d turns, %d waiting, the meter is %v", len(w.turn), len(w.waiting), w.m)
	}
}

func FuzzParseWindow(f *testing.F) {
	f.Add("for=10s&at=2026-11-27T12:00:00Z")
	f.Add("for=%zz;&for=1s")
	f.Fuzz(func(t *testing.T, query string) {
		d, at, err := parseWindow(&http.Request{URL: &url.URL{RawQuery: query}})
		if err == nil && (d < shortestWindow || d > longestWindow || !at.IsZero() && time.Until(at) > farthestWindow) {
			t.Errorf("%q: %v at %v", query, d, at)
		}
	})
}

// TestAccess: windows are for clients on this machine, and for others if the web configuration admits only some of
// them.
func TestAccess(t *testing.T) {
	for _, c := range []struct {
		name, config string
		// remote: all clients elsewhere that the server admits may request windows; verified: those with a verified
		// certificate
		remote, verified, bad bool
	}{
		{"no configuration", "", false, false, false},
		{"passwords", "basic_auth_users: {a: b}", true, true, false},
		{"certificates", "tls_server_config: {client_auth_type: RequireAndVerifyClientCert}", false, true, false},
		{"certificates of any authority", "tls_server_config: {client_auth_type: RequireAnyClientCert}", false, false, false},
		{"certificates if given", "tls_server_config: {client_auth_type: VerifyClientCertIfGiven}", false, false, false},
		{"TLS alone", "tls_server_config: {cert_file: a, key_file: b}", false, false, false},
		{"no users", "basic_auth_users: {}", false, false, false},
		{"no YAML", "basic_auth_users: [", false, false, true},
	} {
		file := ""
		if c.config != "" {
			file = filepath.Join(t.TempDir(), "web.yaml")
			if err := os.WriteFile(file, []byte(c.config), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, err := readAccess(file)
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for address, local := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "127.9.9.9:1": true,
			"[::ffff:127.0.0.1]:1": true, "10.0.0.1:1": false, "[fe80::1%lo]:1": false, "": false, "localhost:1": false} {
			r := &http.Request{RemoteAddr: address, Host: "localhost:9633"}
			if got := a.allows(r); !c.bad && got != (local || c.remote) {
				t.Errorf("%s: %q may ask for windows: %v", c.name, address, got)
			}
			r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
			if got := a.allows(r); !c.bad && got != (local || c.verified) {
				t.Errorf("%s: with a certificate %q may ask for windows: %v", c.name, address, got)
			}
		}
	}
	if _, err := readAccess("/nowhere/web.yaml"); err == nil {
		t.Error("a file that is not there lets in all")
	}
}

// TestLocal: requests of a proxy's clients, and of pages in a browser, also come from the loopback address, but are not
// local.
func TestLocal(t *testing.T) {
	for _, c := range []struct {
		host, header, value string
		local               bool
	}{
		{"127.0.0.1:9633", "", "", true}, {"[::1]:9633", "", "", true}, {"localhost", "", "", true},
		{"127.0.0.1", "Sec-Fetch-Site", "none", true}, {"127.0.0.1", "Sec-Fetch-Site", "same-origin", true},
		{"evil.example:9633", "", "", false}, {"10.0.0.1:9633", "", "", false}, {"", "", "", false},
		{"127.0.0.1", "Sec-Fetch-Site", "cross-site", false}, {"localhost", "Via", "1.1 proxy", false},
		{"localhost", "X-Forwarded-For", "10.0.0.1", false}, {"localhost", "Forwarded", "for=10.0.0.1", false},
	} {
		r := &http.Request{RemoteAddr: "127.0.0.1:1", Host: c.host, Header: http.Header{}}
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		if got := isLocal(r); got != c.local {
			t.Errorf("host %q, %s: %s: %v", c.host, c.header, c.value, got)
		}
	}
}

// TestClock has the client of package remote compare the agent's clock with its own, which is the same one.
func TestClock(t *testing.T) {
	c := &configuration{Values: param.Defaults(settings)}
	handler := admit(c, http.HandlerFunc(serveClock))
	server := httptest.NewServer(handler)
	defer server.Close()
	a, err := remote.New(remote.Options{Address: "localhost:1", Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	offset, uncertainty, err := a.Clock(t.Context())
	if err != nil || offset.Abs() > uncertainty || uncertainty <= 0 {
		t.Errorf("the same clock is %v ahead, within %v: %v", offset, uncertainty, err)
	}
	r := httptest.NewRequest(http.MethodGet, "/v1/clock", nil)
	r.RemoteAddr = "192.0.2.1:1"
	answer := httptest.NewRecorder()
	if handler.ServeHTTP(answer, r); answer.Code != http.StatusForbidden {
		t.Errorf("a client of another machine gets %d", answer.Code)
	}
}

// TestAccessOfAChangedFile: exporter-toolkit reads the file for each request, and so does admit: if a password is
// removed from the file while the agent runs, windows are not opened to everyone.
func TestAccessOfAChangedFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yaml")
	c := &configuration{Values: param.Defaults(settings)}
	c.Values[settingWebConfig] = file
	w := admit(c, newWindows(c, &weigher{names: names.Open(names.Options{})}, nil))
	for _, step := range []struct {
		config string
		want   int
	}{
		{"basic_auth_users: {a: b}", http.StatusBadRequest}, // admitted, but the length of the window is invalid
		{"basic_auth_users: {}", http.StatusForbidden},
		{"basic_auth_users: [", http.StatusInternalServerError},
	} {
		if err := os.WriteFile(file, []byte(step.config), 0o600); err != nil {
			t.Fatal(err)
		}
		answer := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/v1/ledger?for=NaN", nil)
		r.RemoteAddr = "192.0.2.1:1"
		w.ServeHTTP(answer, r)
		if answer.Code != step.want {
			t.Errorf("with %s: status %d, want %d", step.config, answer.Code, step.want)
		}
	}
}
