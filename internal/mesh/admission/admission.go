// Package admission is a load for Kubernetes admission webhooks that review pods. It sends AdmissionReviews as an API
// server does, over one HTTP/2 connection with TLS, and reads the patches in the answers. If pods get certificates, it
// then requests one for each pod, with a token like the one that the kubelet would give the pod.
package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"tare/internal/experiment/load"
	"tare/internal/experiment/load/running"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh/controlplane/authority"
)

// Generator is the name of this load in results.
const Generator = "admission"

// Webhook is the ready message of a subject with a webhook.
type Webhook struct {
	URL   string `json:"url"`   // https
	Roots []byte `json:"roots"` // PEM: the roots with which to verify the webhook's certificate
	// Certificates is the address, host:port, at which pods get certificates with the tokens of their service accounts
	// (authority.Agent); empty: they get none.
	Certificates string `json:"certificates,omitempty"`
	// Identities is the beginning of every pod's identity. The name of the pod's service account follows it.
	Identities string `json:"identities,omitempty"`
	// Signer is the private key, as a JWK, with which to sign the pods' tokens in place of an API server. Issuer and
	// Audience are claims of the tokens.
	Signer   json.RawMessage `json:"signer,omitempty"`
	Issuer   string          `json:"issuer,omitempty"`
	Audience string          `json:"audience,omitempty"`
}

// The kinds of failures, in addition to status-CODE for an HTTP status other than 200.
const (
	failedConnection  = "connection"
	failedTimeout     = "timeout"
	failedAnswer      = "answer"      // the response does not answer the review
	failedRefused     = "refused"     // the pod is not allowed
	failedLeft        = "left-alone"  // the pod is not injected
	failedCertificate = "certificate" // no certificate was issued for the token
)

// The names of counts and of a histogram in the load's results, in addition to those of every load.
const (
	countFinished        = "finished"              // successful reviews that ended, certificate included, in the window
	countCertificates    = "certificates"          // certificates for reviews that were due in the window
	histogramCertificate = "admission_certificate" // from the answer to a review until the pod has its certificate
)

// Load is a client of a webhook, ready to run once.
type Load struct {
	o      Options
	to     Webhook
	http   *http.Client
	signer jose.Signer // signs pods' tokens; nil without certificates

	begin, end int64 // of the window, ns by pace.Now

	mu sync.Mutex // guards the fields below
	tally
	log *running.Log
}

// Prepare connects to a webhook, and makes it review some pods.
func Prepare(ctx context.Context, o Options, to Webhook) (*Load, error) {
	if to.URL == "" {
		return nil, fault.New(fault.Usage, "subject", "weigh one that has a webhook, such as injector",
			"the subject has no webhook")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(to.Roots) {
		return nil, fault.New(fault.Usage, to.URL, "", "the webhook's roots are no certificates")
	}
	l := &Load{o: o, to: to}
	if to.Certificates != "" {
		var key jose.JSONWebKey
		if err := json.Unmarshal(to.Signer, &key); err != nil {
			return nil, fmt.Errorf("reading the key that signs tokens: %w", err)
		}
		var err error
		if l.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil); err != nil {
			return nil, fmt.Errorf("signing tokens: %w", err)
		}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true, DisableCompression: true}
	l.http = &http.Client{Transport: transport, Timeout: o.Timeout}
	// The first reviews of a process are slow, and must not be timed.
	for i := range 3 {
		if failed, _, err := l.ask(ctx, i); err != nil {
			return nil, fault.Wrap(err, fault.Machine, to.URL, "", "the webhook does not answer")
		} else if failed != "" {
			return nil, fault.New(fault.Machine, to.URL, "", "a review failed: %s", failed)
		}
	}
	return l, nil
}

// Close closes the connection.
func (l *Load) Close() error {
	l.http.CloseIdleConnections()
	return nil
}

// answered is an answer to a review, with the fields that are checked.
type answered struct {
	Response *struct {
		UID       string `json:"uid"`
		Allowed   bool   `json:"allowed"`
		PatchType string `json:"patchType"`
		Patch     []byte `json:"patch"`
	} `json:"response"`
}

// review sends the i-th review. failed is the kind of failure; it is empty if the answer is a patch. err, if any, is
// the cause of a failure to get an answer.
func (l *Load) review(ctx context.Context, i int) (failed string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.to.URL, bytes.NewReader(reviewOf(i)))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := l.http.Do(r)
	if err != nil {
		return kindOf(err), err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return kindOf(err), err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Sprint("status-", answer.StatusCode), nil
	}
	var a answered
	if json.Unmarshal(text, &a) != nil || a.Response == nil || a.Response.UID != uid(i) {
		return failedAnswer, nil
	}
	switch {
	case !a.Response.Allowed:
		return failedRefused, nil
	case len(a.Response.Patch) == 0 || a.Response.PatchType != "JSONPatch":
		return failedLeft, nil
	}
	return "", nil
}

func kindOf(err error) string {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return failedTimeout
	}
	return failedConnection
}

// ask sends the i-th review and, if pods get certificates, gets the pod's certificate. answered is the time (ns by
// pace.Now) at which the review was answered.
func (l *Load) ask(ctx context.Context, i int) (failed string, answered int64, err error) {
	failed, err = l.review(ctx, i)
	answered = pace.Now()
	if err == nil && failed == "" && l.to.Certificates != "" {
		failed, err = l.certify(ctx, i)
	}
	return failed, answered, err
}

// certify requests the certificate of the i-th pod, using the token of the pod's service account.
func (l *Load) certify(ctx context.Context, i int) (failed string, err error) {
	a := authority.Agent{Address: l.to.Certificates, Identity: l.to.Identities + account(i), Roots: l.to.Roots,
		ReadToken: func() (authority.Token, error) { return l.token(i) }}
	if _, err = a.Request(ctx, authority.Credentials{}); err != nil {
		return failedCertificate, err
	}
	return "", nil
}

// token returns the token that the kubelet would give the i-th pod (k8s.io/kubernetes/pkg/serviceaccount, Claims).
func (l *Load) token(i int) (authority.Token, error) {
	now := time.Now()
	object := func(name, uid string) map[string]string { return map[string]string{"name": name, "uid": uid} }
	text, err := jwt.Signed(l.signer).Claims(jwt.Claims{
		Issuer: l.to.Issuer, Audience: jwt.Audience{l.to.Audience}, Subject: "system:serviceaccount:" + Namespace + ":" +
			account(i),
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}).Claims(map[string]any{"kubernetes.io": map[string]any{"namespace": Namespace,
		"serviceaccount": object(account(i), uid(i)), "pod": object(podName(i), uid(i))}}).Serialize()
	if err != nil {
		return "", fmt.Errorf("signing the token of a pod: %w", err)
	}
	return authority.Token(text), nil
}

// tally holds the counts of a run.
type tally struct {
	load.Tally
	settled     int64 // successful reviews that ended in the window, certificate included
	errors      map[string]int64
	certificate *hdrhistogram.Histogram
}

func newTally() tally {
	t := tally{Tally: load.NewTally(), errors: map[string]int64{}}
	t.certificate = t.Histogram(histogramCertificate)
	return t
}

// in reports whether a time (ns by pace.Now) is in the window.
func (l *Load) in(intended int64) bool { return intended >= l.begin && intended < l.end }

// do makes the i-th review, which was intended to start at a given time; a negative time means now (closed loop). free
// is when the calling goroutine became free; the result is when it is free again. Times are in ns by pace.Now.
func (l *Load) do(ctx context.Context, i int, intended, free int64) int64 {
	sent := pace.Now()
	own := int64(-1) // how much later than possible the load sent the review, in ns; -1 in closed loop
	if intended < 0 {
		intended = sent
	} else {
		own = sent - max(intended, free)
	}
	failed, done, _ := l.ask(ctx, i)
	ended := pace.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log.Add(intended, sent, done, own, -1, failed == "")
	if failed == "" {
		l.Answered(intended, sent, done, l.begin, l.end)
		if l.in(ended) {
			l.settled++
		}
	}
	if !l.in(intended) {
		return ended
	}
	l.Began(intended, sent, own)
	if failed != "" {
		if ctx.Err() == nil { // otherwise the drain has ended, and the review is unfinished
			l.errors[failed]++
		}
		return ended
	}
	if l.to.Certificates != "" {
		load.Record(l.certificate, ended-done)
	}
	return ended
}

// Ready is the data of the ready message.
type Ready struct {
	AtOnce int `json:"at_once"`
	role.Wants
}

// Run sends reviews by the schedule. When Options.Drain has passed after the window, it stops reviews that have not
// ended. Reviews that are intended to start in the window count, whenever they end.
func (l *Load) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	var err error
	if l.begin, l.end, err = s.Window(); err != nil {
		return nil, err
	}
	l.tally = newTally()
	if s.Stalls {
		l.log = running.NewLog(l.logged(s))
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	timer := time.AfterFunc(time.Duration(l.end-pace.Now())+l.o.Drain, stop)
	defer timer.Stop()
	var next atomic.Int64
	due := make(chan due, l.o.AtOnce)
	var wait sync.WaitGroup
	for range l.o.AtOnce {
		wait.Go(func() { l.work(working, s.Begin, due, &next) })
	}
	pacing := make(chan error, 1)
	go func() {
		defer close(due)
		pacing <- l.pace(working, s, due)
	}()
	cpu, err := pace.ProcessCPU(ctx, l.begin, l.end)
	err = errors.Join(err, <-pacing)
	wait.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return l.result(s, cpu)
}

// due is a review whose start is scheduled.
type due struct {
	number int
	at     int64 // when it is intended to start, ns by pace.Now
}

// logged returns the maximum number of reviews that the log must hold, with a third to spare. In closed loop, where the
// rate is unknown, it assumes 100,000 reviews per second.
func (l *Load) logged(s role.Schedule) int {
	rate := l.o.Rate
	if rate == 0 {
		rate = 100_000
	}
	return int(min(rate*(float64(s.Warmup+s.Duration)/1e9+l.o.Drain.Seconds())*4/3+1000, running.MostRequests))
}

// pace sends each review to the workers when it is due. In closed loop it does nothing.
func (l *Load) pace(ctx context.Context, s role.Schedule, to chan<- due) error {
	if l.o.Rate == 0 {
		return nil
	}
	thread, err := pace.LockThread(pace.DefaultSpin)
	if err != nil {
		return err
	}
	defer thread.Close()
	schedule := pace.NewSchedule(s.Begin, l.o.Rate, l.o.Arrivals, l.o.Seed, 0, 1)
	for i := 3; schedule.Peek() < l.end; i++ { // Prepare sent reviews 0 to 2
		at := schedule.Peek()
		schedule.Advance()
		_, late := thread.Until(ctx, at)
		if late == nil {
			select {
			case to <- due{i, at}:
				continue
			case <-ctx.Done():
			}
		}
		l.unsent(at) // the drain has ended: the rest of the schedule is never sent
	}
	return nil
}

// unsent counts a review that was due but is never sent.
func (l *Load) unsent(at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in(at) {
		l.Intended++
	}
}

// work makes reviews, one at a time, until the schedule or, in closed loop, the window ends. In closed loop it begins
// at the given time (from, ns by pace.Now) and takes the numbers of reviews from next.
func (l *Load) work(ctx context.Context, from int64, due <-chan due, next *atomic.Int64) {
	free := pace.Now()
	if l.o.Rate > 0 {
		for d := range due {
			if ctx.Err() == nil {
				free = l.do(ctx, d.number, d.at, free)
			} else {
				l.unsent(d.at)
			}
		}
		return
	}
	if pace.SleepUntil(ctx, from) != nil {
		return
	}
	for ctx.Err() == nil && free < l.end {
		free = l.do(ctx, int(next.Add(1))+2, -1, free)
	}
}

func (l *Load) result(s role.Schedule, cpu float64) (*load.Result, error) {
	x := &load.Result{Generator: Generator, Mode: load.Closed, Seconds: float64(s.Duration) / 1e9, TargetRate: l.o.Rate,
		Connections: 1, MaxConnections: 1, Streams: l.o.AtOnce, Errors: l.errors, CPUSeconds: cpu,
		CPUs: float64(pace.CPUs())}
	if l.o.Rate > 0 {
		x.Mode, x.Arrivals = load.Open, string(l.o.Arrivals)
	}
	x.Counts = map[string]float64{countFinished: float64(l.settled)}
	if l.to.Certificates != "" {
		x.Counts[countCertificates] = float64(l.certificate.TotalCount())
	}
	return x, l.Into(x)
}

// classify adds to a result the reviews that stalls of the machine did not affect.
func (l *Load) classify(x *load.Result, stalls *role.Stalls) error {
	if l.log == nil {
		return nil
	}
	return running.Classify(x, []*running.Log{l.log}, stalls, l.begin, l.end)
}

// Run plays the load's part in the role protocol: it prepares, sends ready, works, and sends the result.
func Run(ctx context.Context, o Options, to Webhook, conn *role.Conn) (err error) {
	l, err := Prepare(ctx, o, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return role.WorkThenStalls(ctx, conn, Ready{o.AtOnce, role.Wants{Stalls: true}}, l.Run, l.classify)
}
