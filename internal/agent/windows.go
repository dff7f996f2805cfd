package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
	"tare/internal/scale/host/names"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

// access defines which clients may request windows. A window names processes and control groups, as metrics do, and
// costs CPU time.
type access struct{ passwords, certificates bool }

// readAccess reads which clients the web configuration admits. If it requires a password or a client certificate,
// every client that exporter-toolkit admits may request windows; otherwise only clients on this machine may.
func readAccess(file string) (a access, err error) {
	if file == "" {
		return a, nil
	}
	data, err := files.Read(file, maxConfigBytes)
	if err != nil {
		return a, fault.Wrap(err, fault.Usage, file, "name a file that can be read", "the web configuration cannot be read")
	}
	var c struct {
		Users map[string]string `yaml:"basic_auth_users"`
		TLS   struct {
			ClientAuth string `yaml:"client_auth_type"`
		} `yaml:"tls_server_config"`
	}
	if err := yaml.Unmarshal(data, &c); err != nil {
		return a, fault.New(fault.Usage, file, "see Prometheus' exporter-toolkit, docs/web-configuration.md",
			"not a web configuration: %s", text.Line(err.Error()))
	}
	return access{len(c.Users) > 0, c.TLS.ClientAuth == "RequireAndVerifyClientCert"}, nil
}

// allows reports whether a request that exporter-toolkit admitted may have a window. Certificates are checked on the
// connection, because the file may have changed since the server read it.
func (a access) allows(r *http.Request) bool {
	verified := r.TLS != nil && len(r.TLS.VerifiedChains) > 0
	return a.passwords || a.certificates && verified || isLocal(r)
}

// isLocal reports whether the request comes from a program on this machine: not from a proxy that forwards it, nor
// from a page of another site in a browser.
func isLocal(r *http.Request) bool {
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(header) != "" {
			return false
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
		return false
	}
	// In a request from the page of another site, Host is the name of that site, even if the name resolves to this
	// machine's loopback address (DNS rebinding).
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	return (name == "localhost" || isLoopback(name)) && isLoopback(r.RemoteAddr)
}

// isLoopback reports whether an address, with or without a port, is a loopback address.
func isLoopback(address string) bool {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	address, _, _ = strings.Cut(strings.Trim(address, "[]"), "%")
	ip := net.ParseIP(address)
	return ip != nil && ip.IsLoopback()
}

// windows answers requests for ledgers, one at a time. Windows have a separate meter, so scrapes are unaffected by
// when they begin and end. The meter stays open for a while, for the next request.
type windows struct {
	c       *configuration
	names   *names.Resolver
	writers *writers
	charger *charger
	shared  *meter.Shared

	turn    chan struct{} // has one element while no window is open
	waiting chan struct{} // has one element for each request that waits for its turn or has it
	mu      sync.Mutex
	m       *meter.Meter // nil while no meter is open
	unused  *time.Timer  // closes m when it has not been used for meterKept
}

const (
	shortestWindow = 100 * time.Millisecond
	longestWindow  = 5 * time.Minute
	farthestWindow = time.Minute      // how far in the future a window may begin
	maxWaiting     = 8                // requests, including the one whose window is open
	meterKept      = 15 * time.Second // how long the meter stays open after a window
	longestWait    = time.Minute      // how long a request may wait for earlier windows
	maxDocument    = 64_000_000       // bytes: about 60,000 control groups
)

func newWindows(c *configuration, of *weigher, writers *writers) *windows {
	w := &windows{c: c, names: of.names, writers: writers, charger: &charger{rules: c.rules, layout: of.layout},
		shared: &of.shared, turn: make(chan struct{}, 1), waiting: make(chan struct{}, maxWaiting)}
	w.turn <- struct{}{}
	return w
}

// admit passes on the requests of clients that may have windows.
func admit(c *configuration, h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		// exporter-toolkit also reads the file for each request, so the clients that it admits may have changed.
		access, err := readAccess(c.webConfig())
		switch {
		case err != nil:
			http.Error(rw, text.Line(err.Error()), http.StatusInternalServerError)
		case !access.allows(r):
			http.Error(rw, "only clients on this machine may request windows; to let others, require a password or client "+
				"certificates in --web.config.file", http.StatusForbidden)
		default:
			h.ServeHTTP(rw, r)
		}
	})
}

// serveClock answers with the time of this machine, so clients can measure its offset from their own. A request for a
// window gives its beginning (at) in this time.
func serveClock(rw http.ResponseWriter, _ *http.Request) {
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Cache-Control", "no-store")
	fmt.Fprintf(rw, "{\"time\": %q}\n", time.Now().UTC().Format(time.RFC3339Nano))
}

func (w *windows) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	d, at, err := parseWindow(r)
	if err != nil {
		http.Error(rw, text.Line(err.Error()), http.StatusBadRequest)
		return
	}
	_ = http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(longestWait + farthestWindow + d + answerTimeout))
	document, status, err := w.document(r.Context(), d, at)
	_ = http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(answerTimeout))
	if err != nil {
		if status == http.StatusTooManyRequests {
			rw.Header().Set("Retry-After", "10")
		}
		http.Error(rw, text.Line(err.Error()), status)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	w.writers.write(rw, document)
}

// document takes a window when no other is open, and returns its ledger as JSON. status is the HTTP status for an
// error, and has no meaning without one. The next window does not wait until the client has read the document.
func (w *windows) document(ctx context.Context, d time.Duration, at time.Time) (data []byte, status int, err error) {
	select {
	case w.waiting <- struct{}{}:
		defer func() { <-w.waiting }()
	default:
		return nil, http.StatusTooManyRequests, errors.New("too many requests are waiting for windows")
	}
	waiting, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	select {
	case <-w.turn:
		defer func() { w.turn <- struct{}{} }()
	case <-waiting.Done():
		return nil, http.StatusTooManyRequests, errors.New("other windows took more than a minute")
	}
	if !at.IsZero() && time.Now().After(at) { // the window would be late, and cut short
		return nil, http.StatusTooManyRequests, errors.New("other windows took until after the time at which this one was " +
			"to begin")
	}
	l, err := w.weigh(ctx, d, at)
	if err == nil {
		data, err = json.Marshal(l)
	}
	if err == nil && len(data) > maxDocument {
		err = fmt.Errorf("the ledger has %d MB, the limit is %d MB", len(data)/1_000_000, maxDocument/1_000_000)
	}
	return append(data, '\n'), http.StatusInternalServerError, err
}

// parseWindow parses how long a window lasts (d) and when it begins (at). If the request has no beginning, at is the
// zero time, which means now.
func parseWindow(r *http.Request) (d time.Duration, at time.Time, err error) {
	d = 10 * time.Second
	if s := r.URL.Query().Get("for"); s != "" {
		if d, err = time.ParseDuration(s); err != nil {
			return 0, at, fmt.Errorf("for must be a duration such as 10s, got %s", text.Clip(s))
		}
	}
	if d < shortestWindow || d > longestWindow {
		return 0, at, fmt.Errorf("for must be %v to %v, got %v", shortestWindow, longestWindow, d)
	}
	if s := r.URL.Query().Get("at"); s != "" {
		if at, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return 0, at, fmt.Errorf("at must be a time such as 2026-11-27T12:00:00Z, got %s", text.Clip(s))
		}
		if ahead := time.Until(at); ahead < 0 || ahead > farthestWindow {
			return 0, at, fmt.Errorf("at must be 0s to %v from now, got %v", farthestWindow,
				ahead.Round(time.Millisecond))
		}
	}
	return d, at, nil
}

// weigh takes one window. The caller must have received from w.turn.
func (w *windows) weigh(ctx context.Context, d time.Duration, at time.Time) (l *ledger.Ledger, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unused != nil {
		w.unused.Stop()
	}
	begin := pace.Clock(unix.CLOCK_MONOTONIC)
	if !at.IsZero() {
		begin += int64(time.Until(at))
	}
	if w.m == nil {
		saveMemory()
		w.m, err = meter.New(ctx, meter.Options{SampleHz: w.c.hz(), NoStatistics: w.c.withoutStatistics(),
			Shared: w.shared})
		if err != nil {
			saveTime()
			return nil, err
		}
	}
	defer func() { w.unused = time.AfterFunc(meterKept, w.close) }()
	open, err := w.m.OpenAt(ctx, begin)
	if err != nil {
		return nil, err
	}
	if at.IsZero() {
		begin = pace.Clock(unix.CLOCK_MONOTONIC)
	}
	if l, err = open.CloseAt(ctx, begin+int64(d)); err != nil {
		return nil, err
	}
	w.names.Fill(l)
	w.charger.charge(l)
	return l, nil
}

func (w *windows) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m != nil {
		_ = w.m.Close()
		w.m = nil
		saveTime()
	}
}
