package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
	"tare/internal/lib/text"
)

// Bounds on what clients can cost.
const (
	maxConnections = 64
	maxScrapes     = 8 // scrapes that wait for an answer
	maxUnread      = 8 // answers that clients have not yet read
	headerTimeout  = 10 * time.Second
	answerTimeout  = 30 * time.Second // for a client to read an answer; after a window, it begins anew
	idleTimeout    = 2 * time.Minute
	maxHeader      = 16 << 10 // bytes
)

func listen(c *configuration) (net.Listener, error) {
	l, err := net.Listen("tcp", c.listen())
	return l, fault.Wrap(err, fault.Machine, c.where(settingListen), "choose another address, such as 127.0.0.1:9634",
		"cannot listen")
}

// serve answers requests until the context ends.
func serve(ctx context.Context, c *configuration, w *weigher, l net.Listener, log *slog.Logger) error {
	if _, err := readAccess(c.webConfig()); err != nil {
		return err
	}
	writers := &writers{most: maxUnread}
	windows := newWindows(c, w, writers)
	defer windows.close()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", newScrapes(w, writers))
	mux.Handle("GET /v1/ledger", admit(c, windows))
	mux.Handle("GET /v1/clock", admit(c, http.HandlerFunc(serveClock)))
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) {
		if err := w.health(); err != nil {
			http.Error(rw, text.Line(err.Error()), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, "ok")
	})
	mux.HandleFunc("GET /{$}", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(rw, landingPage)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	l = limit.AtMostIdle(l, maxConnections, server)
	ctx, stop := context.WithCancel(ctx)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		w.keepReading(ctx)
	}()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	}()
	log.Info("weighing this machine", "address", l.Addr().String(), "metrics", "/metrics")
	file, socket := c.webConfig(), false
	err := web.Serve(l, server,
		&web.FlagConfig{WebConfigFile: &file, WebSystemdSocket: &socket}, log)
	stop()
	<-stopped
	<-reading
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fault.Wrap(err, fault.Machine, l.Addr().String(), "", "serving failed")
}

const landingPage = `<!doctype html><html lang="en"><title>tare-agent</title>
<h1>tare-agent</h1><p>It weighs this machine.</p>
<ul><li><a href="/metrics">Metrics</a></li><li><a href="/v1/ledger?for=10s">Ledger of the next 10 seconds</a></li>
<li><a href="/healthz">Health</a></li></ul></html>
`
