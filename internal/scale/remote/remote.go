// Package remote reads ledgers of another machine from the tare-agent running there. Start reading at Agent.Next.
package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

// Options holds an agent's address and credentials.
type Options struct {
	Address      string // HOST:PORT
	TLS          bool   // HTTPS, with the system's certificate authorities
	CAFile       string // HTTPS, with the certificate authorities in this file (PEM) instead
	ServerName   string // expected in the agent's certificate; empty: the host of Address
	User         string // requires PasswordFile
	PasswordFile string
	TokenFile    string // holds a bearer token
	// Prefix is the prefix of the flags that set these options, for errors: "agents-" for --agents-ca and so on.
	Prefix string
	// Dial connects to the agent by other means than TCP; nil: by TCP.
	Dial func(ctx context.Context) (net.Conn, error)
	// Reading is a semaphore that all agents share, to bound the number of ledgers in memory; nil: no bound. An agent
	// acquires it when its answer begins to arrive, and releases it in Close.
	Reading chan struct{}
}

// Agent is a client of a tare-agent. It is not safe for concurrent use.
type Agent struct {
	address string
	scheme  string
	client  *http.Client
	user    string
	secret  string // a password with a user, else a bearer token; empty: none
	reading chan struct{}
	placed  bool // it has acquired reading
}

// The shortest window to request, and bounds on what an agent can cost its client.
const (
	maxBytes   = 64 << 20
	maxValues  = 500_000  // objects and nulls: a small document can expand to a large ledger
	maxPath    = 4096     // bytes of a control group's path, as in the kernel
	maxSecret  = 64 << 10 // bytes of a file
	shortest   = 100 * time.Millisecond
	patience   = 75 * time.Second // in addition to the window, which may start a minute late because of others
	maxComment = 200              // bytes of an error message from an agent
)

// A slow answer keeps others from being read. Therefore an agent acquires Options.Reading only after the first bytes of
// its answer, and the rest must arrive within the time slowest, plus perMiB for each MiB.
const (
	firstBytes = 16 << 10
	slowest    = 2 * time.Second
	perMiB     = time.Second
)

var errSlow = errors.New("its answer comes too slowly")

// New reads the files named by the options. It sends nothing.
func New(o Options) (*Agent, error) {
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil || host == "" || strings.ContainsAny(o.Address, "/@?# ") {
		return nil, fault.New(fault.Usage, "--agent "+text.Clip(o.Address), "try --agent node-7:9633",
			"the address of an agent must be HOST:PORT")
	}
	flag := func(name string) string { return "--" + o.Prefix + name }
	a := &Agent{address: o.Address, scheme: "http", user: o.User, reading: o.Reading}
	t := &http.Transport{MaxIdleConns: 1, ResponseHeaderTimeout: 0, MaxResponseHeaderBytes: 64 << 10}
	if o.Dial != nil {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) }
	}
	t.TLSClientConfig = &tls.Config{ServerName: o.ServerName}
	if o.CAFile != "" {
		pem, err := secretFile(flag("ca"), o.CAFile)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(pem)) {
			return nil, fault.New(fault.Usage, flag("ca")+" "+o.CAFile, "name a file of PEM certificates",
				"no certificate found")
		}
	}
	if o.TLS || o.CAFile != "" {
		a.scheme = "https"
	}
	switch {
	case (o.User == "") != (o.PasswordFile == ""):
		return nil, fault.New(fault.Usage, flag("user")+", "+flag("password-file"), "give both, or neither",
			"a user name and a password go together")
	case o.PasswordFile != "" && o.TokenFile != "":
		return nil, fault.New(fault.Usage, flag("password-file")+", "+flag("token-file"), "give one of them",
			"a request has either a password or a token")
	case o.PasswordFile != "":
		a.secret, err = secretFile(flag("password-file"), o.PasswordFile)
	case o.TokenFile != "":
		a.secret, err = secretFile(flag("token-file"), o.TokenFile)
	}
	if err != nil {
		return nil, err
	}
	if a.secret != "" && a.scheme == "http" && !loopback(host) {
		return nil, fault.New(fault.Usage, "--agent "+text.Clip(o.Address), "add --tls, or --ca FILE",
			"a password or token would be sent to another machine in plain text")
	}
	a.client = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the secret is only for this address
	}}
	return a, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func secretFile(flag, path string) (string, error) {
	data, err := files.Read(path, maxSecret)
	secret := strings.TrimSpace(string(data))
	if err == nil && secret == "" {
		err = errors.New("empty file")
	}
	return secret, fault.Wrap(err, fault.Usage, flag+" "+path, "name a file that you may read", "cannot use the file")
}

// Next requests a window that starts now and lasts d, and returns its ledger. An agent's windows do not share edges:
// the time that a ledger takes to arrive is in no window. Next rounds d to milliseconds, and to at least 100 ms.
func (a *Agent) Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error) {
	d = max(d.Round(time.Millisecond), shortest)
	ctx, cancel := context.WithTimeout(ctx, d+patience)
	defer cancel()
	return a.window(ctx, url.Values{"for": {d.String()}})
}

// At is like Next, but the window starts at the given time of the agent's clock, at most a minute from now. At sets no
// time limit.
func (a *Agent) At(ctx context.Context, at time.Time, d time.Duration) (*ledger.Ledger, error) {
	return a.window(ctx, url.Values{"for": {max(d.Round(time.Millisecond), shortest).String()},
		"at": {at.UTC().Format(time.RFC3339Nano)}})
}

func (a *Agent) window(ctx context.Context, query url.Values) (*ledger.Ledger, error) {
	data, err := a.get(ctx, "/v1/ledger", query, maxBytes)
	if err != nil {
		return nil, err
	}
	l, err := parse(data)
	if err != nil {
		return nil, a.failed("check that this is the address of a tare-agent", err)
	}
	return l, nil
}

// Clock requests the agent's time. It returns how far the agent's clock is ahead of this machine's, and half the
// duration of the request, by which the offset may be wrong.
func (a *Agent) Clock(ctx context.Context) (offset, uncertainty time.Duration, err error) {
	// time.Now reads two clocks, between which this thread may have to wait for a CPU. So the duration is measured from an
	// earlier reading than the one that is compared with the agent's time.
	began, asked := time.Now(), time.Now()
	data, err := a.get(ctx, "/v1/clock", nil, maxComment)
	uncertainty = time.Since(began) / 2
	if err != nil {
		return 0, 0, err
	}
	var answer struct {
		Time time.Time `json:"time"`
	}
	if err := json.Unmarshal(data, &answer); err != nil || answer.Time.IsZero() {
		return 0, 0, a.failed("check that this is the address of a tare-agent", errors.New("the answer has no time"))
	}
	return answer.Time.Sub(asked.Add(uncertainty)), uncertainty, nil
}

// get returns an answer, and fails if it is longer than the given number of bytes.
func (a *Agent) get(ctx context.Context, path string, query url.Values, most int64) ([]byte, error) {
	u := url.URL{Scheme: a.scheme, Host: a.address, Path: path, RawQuery: query.Encode()}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("asking an agent: %w", err)
	}
	switch {
	case a.secret == "":
	case a.user != "":
		r.SetBasicAuth(a.user, a.secret)
	default:
		r.Header.Set("Authorization", "Bearer "+a.secret)
	}
	answer, err := a.client.Do(r)
	if err != nil {
		return nil, a.failed("check that tare-agent runs there and that its port can be reached", err)
	}
	defer answer.Body.Close()
	data, err := a.read(ctx, cancel, io.LimitReader(answer.Body, most+1), most > maxComment)
	switch {
	case err != nil:
		return nil, a.failed("", err)
	case answer.StatusCode != http.StatusOK:
		return nil, a.refused(answer.StatusCode, data)
	case int64(len(data)) > most:
		return nil, a.failed("", fmt.Errorf("the answer has more than %d bytes", most))
	}
	return data, nil
}

// read reads an answer. Of a ledger, it reads only the first bytes before it acquires Options.Reading. It calls cancel
// to end the request if the rest arrives too slowly.
func (a *Agent) read(ctx context.Context, cancel context.CancelCauseFunc, body io.Reader,
	isLedger bool,
) ([]byte, error) {
	if a.reading == nil || !isLedger {
		return io.ReadAll(body)
	}
	first, err := io.ReadAll(io.LimitReader(body, firstBytes))
	if err != nil {
		return nil, err
	}
	if !a.placed {
		select {
		case a.reading <- struct{}{}:
			a.placed = true
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	began := time.Now()
	slow := time.AfterFunc(slowest, func() { cancel(errSlow) })
	defer slow.Stop()
	data := bytes.NewBuffer(first)
	for err == nil {
		if _, err = io.CopyN(data, body, 1<<20); err == nil && !slow.Reset(
			time.Until(began.Add(slowest+perMiB*time.Duration(data.Len()>>20)))) {
			return nil, errSlow
		}
	}
	if errors.Is(err, io.EOF) {
		return data.Bytes(), nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return nil, err
}

// Close closes the connection, and releases Options.Reading for the next ledger.
func (a *Agent) Close() error {
	a.client.CloseIdleConnections()
	if a.placed {
		a.placed = false
		<-a.reading
	}
	return nil
}

// failed returns an error that starts with the agent's address and does not repeat it, so that it fits on one line.
func (a *Agent) failed(hint string, err error) error {
	if of, is := errors.AsType[*url.Error](err); is {
		err = of.Err
	}
	if of, is := errors.AsType[*net.OpError](err); is {
		err = of.Err
	}
	return fault.Wrap(err, fault.Machine, a.address, hint, "no ledger")
}

// refused returns the error for an answer with a status other than 200.
func (a *Agent) refused(status int, says []byte) error {
	hint := "see the agent's log"
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		hint = "give --user and --password-file for a user in the agent's --web.config.file"
	case http.StatusTooManyRequests:
		hint = "other clients are using this agent: try again later"
	case http.StatusNotFound:
		hint = "check that this is the address of a tare-agent"
	case http.StatusBadRequest:
		hint = "if the agent speaks HTTPS, add --tls or --ca FILE"
	}
	why := text.ClipLine(strings.TrimSpace(string(says[:min(len(says), 2*maxComment)])), maxComment)
	return a.failed(hint, &Refusal{status, why})
}

// Refusal is an answer with a status other than 200.
type Refusal struct {
	Status int
	Says   string // one line
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%d %s: %s", r.Status, http.StatusText(r.Status), r.Says)
}

// Denied reports whether the agent requires HTTPS or credentials that it did not get.
func (r *Refusal) Denied() bool {
	return r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden ||
		r.Status == http.StatusBadRequest && strings.Contains(r.Says, "HTTPS") // net/http's own answer
}

// parse reads a ledger, and rejects one that would take much more memory than its text.
func parse(data []byte) (*ledger.Ledger, error) {
	if bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("null")) > maxValues {
		return nil, fmt.Errorf("the ledger has more than %d parts", maxValues)
	}
	var l ledger.Ledger
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, fmt.Errorf("the answer is not a ledger: %s", text.ClipLine(err.Error(), maxComment))
	}
	switch s := l.Window.Seconds; {
	case l.Schema != ledger.Schema:
		return nil, fmt.Errorf("the answer is not a ledger: its schema is %q", text.Clip(l.Schema))
	case !(s > 0) || math.IsInf(s, 0):
		return nil, fmt.Errorf("the window of the ledger lasts %v s", s)
	}
	for _, g := range l.Cgroups {
		if len(g.Path) > maxPath {
			return nil, fmt.Errorf("the path of a control group has more than %d bytes", maxPath)
		}
	}
	return &l, nil
}
