package dataplane

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// firstPause is the longest time before the second try of a request, twice as long before each that follows.
const firstPause = 25 * time.Millisecond

// RoundTrip brings a request to an endpoint of its cluster. It tries again where its route says so, which is for
// requests without a body.
func (x *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	if x.upload != nil {
		if err := x.upload.receive(r); err != nil {
			return nil, err
		}
	}
	if x.route.Timeout > 0 {
		x.deadline = time.Now().Add(x.route.Timeout)
	}
	retry := &x.route.Retry
	x.perTry = retry.PerTry
	for try := 0; ; try++ {
		resp, err := x.try(r)
		if try >= retry.Attempts || r.Body != nil || r.Context().Err() != nil {
			return resp, err
		}
		switch {
		case err == nil:
			if !retry.Statuses(resp.StatusCode) {
				return resp, nil
			}
			resp.Body.Close()
		case errors.As(err, new(notSent)):
			if !retry.Connect {
				return nil, err
			}
		case !retry.Reset:
			return nil, err
		}
		pause := rand.N(firstPause << min(try, 6))
		if !x.deadline.IsZero() && time.Until(x.deadline) < pause {
			return nil, context.DeadlineExceeded
		}
		x.proxy.stats.Retries.Add(1)
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

func (x *exchange) try(r *http.Request) (*http.Response, error) {
	at, ok := x.cluster.balance.Load().pick()
	if !ok {
		x.proxy.stats.NoUpstream.Add(1)
		return nil, notSent{errNoEndpoint}
	}
	if x.cluster.upstream.h2 != nil {
		return x.tryHTTP2(r, at)
	}
	resp, used, err := x.over(r, at, false)
	if err != nil && used && r.Body == nil && idempotent(r.Method) && isStale(err) {
		// The connection was kept, and its other side has ended it meanwhile: that is nobody's failure.
		resp, _, err = x.over(r, at, true)
	}
	return resp, err
}

// over sends the request by a connection, which is new or was used before.
func (x *exchange) over(r *http.Request, at netip.AddrPort, fresh bool) (resp *http.Response, used bool, err error) {
	l, err := x.cluster.upstream.link(x.within(r), at, fresh)
	if err != nil {
		x.proxy.stats.ConnectErrors.Add(1)
		return nil, false, notSent{err}
	}
	used = l.used
	resp, err = l.roundTrip(x, r)
	return resp, used, err
}

// within is the request's own context: connecting is bounded by the cluster's time anyway.
func (x *exchange) within(r *http.Request) context.Context { return r.Context() }

// isStale says whether an error is that of a connection that had ended.
func isStale(err error) bool {
	return errors.Is(err, errStale) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func idempotent(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// tryHTTP2 sends the request by net/http.
func (x *exchange) tryHTTP2(r *http.Request, at netip.AddrPort) (*http.Response, error) {
	r.URL.Host = at.String()
	ctx, cancel := r.Context(), context.CancelFunc(nil)
	deadline := x.deadline
	if x.perTry > 0 {
		if try := time.Now().Add(x.perTry); deadline.IsZero() || try.Before(deadline) {
			deadline = try
		}
	}
	if !deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, deadline)
		r = r.WithContext(ctx)
	}
	resp, err := x.cluster.upstream.h2.RoundTrip(r)
	if err != nil {
		if cancel != nil {
			cancel()
		}
		return nil, err
	}
	if x.upload != nil {
		x.upload.touch()
		resp.Body = touched{resp.Body, x.upload}
	}
	if cancel != nil {
		resp.Body = &cancelled{resp.Body, cancel}
	}
	return resp, nil
}

// cancelled is a body whose deadline goes when it is closed.
type cancelled struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close ends the body.
func (c *cancelled) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}
