package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// Envoy describes a real Envoy that the load starts in addition to the light proxies.
type Envoy struct {
	Bootstrap string `json:"bootstrap"` // path of its bootstrap file
	// Listen is the address, host:port, at which Envoy accepts connections to the service that shows effects (Effect).
	Listen string `json:"listen"`
}

// Effect is the service with which a real proxy shows that a change is in effect: its endpoint alternates between two
// applications, whose answers have different lengths.
type Effect struct {
	Service int     `json:"service"` // its number in requests for changes
	Lengths [2]int  `json:"lengths"` // in bytes, of the answers of the initial endpoint and of the other one
	Envoys  []Envoy `json:"envoys"`
	Program string  `json:"program"` // the path of Envoy's program
}

// envoy is a running Envoy.
type envoy struct {
	Envoy
	child.Process
	client *http.Client
}

// startEnvoys starts Envoys, and waits until each returns an answer of the service's first endpoint.
func startEnvoys(ctx context.Context, e *Effect) (all []*envoy, err error) {
	defer func() {
		if err != nil {
			closeEnvoys(all)
		}
	}()
	for _, of := range e.Envoys {
		x := &envoy{Envoy: of, client: &http.Client{Timeout: time.Second,
			Transport: &http.Transport{DisableCompression: true}}}
		cmd := child.Command{Argv: []string{e.Program, "-c", of.Bootstrap, "--concurrency", "1", "--disable-hot-restart",
			"--log-level", "error"}}
		err := child.Start(&x.Process, cmd, child.Options{Name: "Envoy", Linger: time.Second})
		if err != nil {
			return all, fault.Wrap(err, fault.Machine, e.Program, "", "the real proxies of the fleet cannot be started")
		}
		all = append(all, x)
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for _, x := range all {
		if _, err := x.shows(ctx, e.Lengths[0], 10*time.Millisecond); err != nil {
			return all, fmt.Errorf("starting the Envoy at %s: %w", x.Listen, err)
		}
	}
	return all, nil
}

// shows sends requests at an interval (every) until an answer has the given length in bytes. It returns the time of
// that answer, in ns by pace.Now.
func (x *envoy) shows(ctx context.Context, length int, every time.Duration) (at int64, err error) {
	var n int
	var why error
	err = x.Await(ctx, every, func() bool {
		n, why = x.ask(ctx)
		at = pace.Now()
		return why == nil && n == length
	})
	switch {
	case err == nil:
		return at, nil
	case errors.Is(err, context.Cause(ctx)):
		//nolint:errorlint // it may be nil
		return 0, x.WithLastWords(fmt.Errorf("%w; the last answer: %d bytes, %v", err, n, why))
	}
	return 0, x.Failure(fmt.Sprintf("before it gave an answer of %d bytes", length))
}

func (x *envoy) ask(ctx context.Context) (length int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+x.Listen+"/", nil)
	if err != nil {
		return 0, err
	}
	answer, err := x.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", answer.StatusCode)
	}
	return len(body), err
}

func closeEnvoys(all []*envoy) {
	for _, x := range all {
		x.Kill()
		x.client.CloseIdleConnections()
	}
}

// askEvery is the interval of the requests that look for the effect.
const askEvery = 200 * time.Microsecond

// effect changes the endpoint of the service that shows effects (Effect), and waits until the new endpoint has answered
// a request through each Envoy.
func (l *Load) effect(ctx context.Context, to *window) error {
	e := l.ready.Effect
	if err := l.mesh.Ask(e.Service); err != nil {
		return err
	}
	made, err := l.mesh.Changed()
	if err != nil {
		return err
	}
	l.change = made.Number
	l.effects++
	want := e.Lengths[l.effects%2]
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	at, errs := make([]int64, len(l.envoys)), make([]error, len(l.envoys))
	var wait sync.WaitGroup
	for i, x := range l.envoys {
		wait.Go(func() { at[i], errs[i] = x.shows(waiting, want, askEvery) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return fault.Wrap(err, fault.Machine, l.ready.Address, "see what the control plane says",
			"a change has no effect at an Envoy")
	}
	if to == nil {
		return nil
	}
	for _, when := range at {
		if err := to.took(map[string]int64{histogramEffect: when - made.Set}); err != nil {
			return err
		}
	}
	return to.add(made.Set, nil) // together they are one change
}
