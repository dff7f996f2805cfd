package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"tare/internal/lib/fault"
)

// Intervals and time limits for readiness checks and other requests to proxies.
const (
	askEvery  = 5 * time.Millisecond
	askFor    = time.Second            // for making a connection
	tellFor   = 10 * time.Second       // for reading a proxy's counters, even if its machine stalls for seconds
	staysOpen = 100 * time.Millisecond // how long a TCP connection must stay open
)

// newAsker makes a client that uses a new connection for each request, so that the measured proxies keep none open, and
// that follows no redirects. It sets no time limit, because an application may be slow.
func newAsker(over *http.Protocols) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, Protocols: over},
	}
}

// asker speaks HTTP/1.1, and asker2 HTTP/2 with prior knowledge.
var (
	asker  = newAsker(nil)
	asker2 = newAsker(priorKnowledge())
)

func priorKnowledge() *http.Protocols {
	over := new(http.Protocols)
	over.SetUnencryptedHTTP2(true)
	return over
}

// asks maps the protocol of a check (see over) to a function that checks that traffic gets through to an address.
var asks = map[string]func(ctx context.Context, address string) error{
	ProtocolHTTP:  func(ctx context.Context, address string) error { return ask(ctx, asker, address) },
	ProtocolHTTP2: func(ctx context.Context, address string) error { return ask(ctx, asker2, address) },
	ProtocolGRPC:  askCall, ProtocolTCP: touch,
}

// over returns the protocol with which to check an application: the protocol of the proxies, or HTTP/1.1 if the proxies
// carry TCP and the application serves HTTP/1.1.
func (j *joined) over(app string) string {
	over := j.part.Options[settingProtocol]
	if over == ProtocolTCP && j.speaksHTTP(app) {
		return ProtocolHTTP
	}
	return over
}

// askCall calls a gRPC method that does not exist. The server behind all proxies must answer that it does not implement
// the method. Envoy itself gives the same status if no route matches; see ask.
func askCall(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/tare.Ready/Ask", http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	resp, err := asker2.Do(req)
	if err != nil {
		return innermost(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<20)
	status := cmp.Or(resp.Trailer.Get("Grpc-Status"), resp.Header.Get("Grpc-Status"))
	if resp.StatusCode != http.StatusOK || status != unimplemented {
		return fmt.Errorf("the answer was status %d, and of gRPC %q", resp.StatusCode, status)
	}
	return nil
}

// unimplemented is the gRPC status for methods that a server does not have.
const unimplemented = "12"

// ask makes a request to an address. The server behind all proxies must answer it. Proxies report failures and refuse
// unknown clients with statuses from 400, so those are errors. Status 404 is not an error, because a server may lack
// the path. Envoy also gives it where no route matches. The header x-envoy-upstream-service-time would show that, but
// only for the first proxy. Tare's routes match every path, and a load whose requests get 404 trips the gate errors.
func ask(ctx context.Context, client *http.Client, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return innermost(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<20)
	if resp.StatusCode >= 400 && resp.StatusCode != http.StatusNotFound {
		return fmt.Errorf("the answer was status %d", resp.StatusCode)
	}
	return nil
}

// touch opens a connection, which must stay open: a proxy that cannot reach its server closes it.
func touch(ctx context.Context, address string) error {
	d := net.Dialer{Timeout: askFor}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return innermost(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(staysOpen)); err != nil {
		return err
	}
	var timeout net.Error
	if _, err := c.Read(make([]byte, 1)); err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
		return fmt.Errorf("the connection was closed at once: %w", innermost(err))
	}
	return nil
}

// innermost returns the cause in a network error, without the addresses around it.
func innermost(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// reach waits until a request has passed through all proxies of an application. Without pods, the time limit runs from
// began, the time at which the proxies were started.
func (j *joined) reach(ctx context.Context, app string, began time.Time) error {
	if j.pods != nil {
		return j.reachFromLoad(ctx, app)
	}
	within := j.part.Options.Duration(settingReady)
	address, asking := j.entry[app], asks[j.over(app)]
	if j.over(app) == ProtocolTCP {
		// All proxies behind the first must listen before it is touched: a proxy that cannot reach the next one yet
		// may take longer to close a connection than touch waits.
		asking = func(ctx context.Context, address string) error {
			if err := knock(ctx, j.listens(app)); err != nil {
				return err
			}
			return touch(ctx, address)
		}
	}
	asked, cancel := context.WithDeadline(ctx, began.Add(within))
	defer cancel()
	var died error
	err := until(asked, func(ctx context.Context) error {
		if died = j.died("before it was ready"); died != nil {
			return nil // end the loop: there will be no answer
		}
		return asking(ctx, address)
	})
	switch {
	case died != nil:
		return died
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return j.unreached(err, app, within)
}

// unreached returns the error for an application that no request has reached in time. It wraps why.
func (j *joined) unreached(why error, app string, within time.Duration) error {
	return j.withWords(fault.Wrap(why, fault.Machine, j.name, "see what the proxies wrote, and raise "+settingReady+
		" if this machine needs longer", "no request got through the proxies to %s within %v", app, within), app)
}

// knock checks that all addresses accept connections.
func knock(ctx context.Context, listens []string) error {
	d := net.Dialer{Timeout: askFor}
	for _, at := range listens {
		c, err := d.DialContext(ctx, "tcp", at)
		if err != nil {
			return innermost(err)
		}
		c.Close()
	}
	return nil
}

// listens returns the addresses at which the proxies of an application listen, except the address that loads connect
// to.
func (j *joined) listens(app string) (all []string) {
	for _, p := range j.proxies {
		if p.place.App == app && p.place.Listen != j.entry[app] {
			all = append(all, p.place.Listen)
		}
	}
	return all
}

// speaksHTTP reports whether an application serves HTTP/1.1.
func (j *joined) speaksHTTP(app string) bool {
	a := j.trial.Setup().Applications[app]
	return a != nil && slices.Contains(servedOver[ProtocolHTTP], spoken(a))
}

// withWords wraps an error with the last output of an application's proxies.
func (j *joined) withWords(err error, app string) error {
	for _, p := range j.proxies {
		if p.place.App != app || p.running == nil {
			continue
		}
		if words := p.running.Words(); words != "" {
			err = fmt.Errorf("%w; %s wrote: %s", err, p.place.Component, words)
		}
	}
	return err
}
