package controlplane

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
	"tare/internal/lib/quantity"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/injection"
)

// Ready is the data of the "ready" message.
type Ready struct {
	Address   string `json:"address"` // host:port
	Config    string `json:"config,omitempty"`
	Clusters  int    `json:"clusters"`
	Endpoints int    `json:"endpoints"`
	Listeners int    `json:"listeners"`
	Proxies   int    `json:"proxies,omitempty"` // number of proxies of the mesh; if above 0, the counts above are 0
	// Credentials is the directory with each proxy's bootstrap and certificate (PlaneOptions.Credentials).
	Credentials string `json:"credentials,omitempty"`
	Admin       string `json:"admin,omitempty"` // host:port of /metrics and /changes
	// Webhook is the address, host:port, to which API servers send reviews of pods. WebhookRoots are the root certificates
	// with which API servers verify the webhook, in PEM (for clientConfig.caBundle, which in JSON is base64 like this
	// field).
	Webhook      string `json:"webhook,omitempty"`
	WebhookRoots []byte `json:"webhook_roots,omitempty"`
}

// Settings configures a control plane that runs as a process.
type Settings struct {
	File        string        // a mesh file, or a directory of mesh files; empty: the mesh comes from "set" only
	Listen      string        // host:port; port 0 takes a free one
	Connections int           // the limit of open connections of proxies; 0: MaxConnections
	Credentials string        // see PlaneOptions
	Roots       string        // see PlaneOptions
	Life        time.Duration // of certificates; 0: the default
	Admin       string        // host:port for metrics and the last changes; empty: not served
	Webhook     Webhook
	// Accounts are service accounts whose tokens agents exchange for certificates; nil: none.
	Accounts *authority.ServiceAccounts
}

// MaxConnections is the default limit of open connections of proxies. Each can make the control plane keep 128 KiB,
// besides what gRPC and TLS need.
const MaxConnections = 10_000

// maxOthers limits the open connections to the metrics and, separately, those to the webhook.
const maxOthers = 200

// Webhook configures how the control plane reviews pods (package injection).
type Webhook struct {
	Listen string            // host:port; empty: not served
	Config *injection.Config // what is injected into pods
	Names  []string          // the DNS names that API servers use for the webhook
}

// The events that a control plane has in addition to those of every role. The parent sends "set" with a Config as data,
// and the answer is "set" with a Done, or an error message. This configuration stays in use until the mesh file
// changes. "endpoints" replaces only the endpoints of some services, and is answered in the same way; its data holds a
// list of Endpoint for each service name.
const (
	SetEvent       = "set"
	EndpointsEvent = "endpoints"
)

// Done is the answer to "set" and "endpoints".
type Done struct {
	Time int64 `json:"time_ns"` // see Server.Set
}

// Run runs a control plane as a process: it listens, sends "ready", follows its files, and ends when ctx or conn's
// input does. Invalid files at the start are an error; later they are logged and change nothing. Refused responses and
// refused peers are logged.
func Run(ctx context.Context, o Settings, conn *role.Conn) error {
	defer BoundGarbage()()
	m, err := (&Config{}).Compile()
	if err != nil {
		return err
	}
	var from *Files
	if o.File != "" {
		from = NewFiles(o.File)
		if m, err = from.Read(); err != nil {
			return err
		}
	}
	var listening []net.Listener
	defer func() {
		for _, l := range listening {
			l.Close() // closing it again, if it was served, does no harm
		}
	}()
	logs := make(chan string, 64) // a parent that does not read the log must not block the streams
	note := func(line string) {
		select {
		case logs <- line:
		default:
		}
	}
	listenAt := func(address, what string, most int, bound bound) (net.Listener, error) {
		if address == "" {
			return nil, nil
		}
		l, err := limit.TCP(ctx, address)
		if err != nil {
			return nil, err
		}
		l = bound(l, most, func(n int) {
			note(fmt.Sprintf("%s: %d connections are open, which is the limit; turned away: %d", what, most, n))
		})
		listening = append(listening, l)
		return l, nil
	}
	connections := cmp.Or(o.Connections, MaxConnections)
	l, err := listenAt(cmp.Or(o.Listen, "127.0.0.1:0"), "proxies", connections, bounding(m.Secure()))
	if err != nil {
		return err
	}
	adminAt, err := listenAt(o.Admin, "metrics", maxOthers, limit.AtMost)
	if err != nil {
		return err
	}
	var admin *Admin
	if adminAt != nil {
		admin = NewAdmin()
	}
	hookAt, err := listenAt(o.Webhook.Listen, "webhook", maxOthers, limit.AtMost)
	if err != nil {
		return err
	}
	refused := newRefusals()
	p, err := NewPlane(ctx, m, PlaneOptions{
		Roots: o.Roots, Credentials: o.Credentials, Life: o.Life, Log: note, Admin: admin, Accounts: o.Accounts,
		Names: o.Webhook.Names, Strangers: min(authority.DefaultMaxStrangers, max(1, connections/4)),
		OnAnswer: func(a Answer) {
			if a.Refused == "" {
				return
			}
			if line, shown := refused.line(a); shown {
				note(line)
			}
		},
	})
	if err != nil {
		return fault.Wrap(err, fault.Usage, o.File, "", "the configuration is wrong")
	}
	defer p.Close()
	ready := Ready{Address: l.Addr().String(), Config: o.File, Credentials: o.Credentials}
	run := []func(context.Context) error{
		p.Run, func(context.Context) error { return p.Serve(l) },
		func(ctx context.Context) error { return sendAll(ctx, conn, logs) },
		func(ctx context.Context) error { return p.obey(ctx, conn) },
	}
	if hookAt != nil {
		hook, err := o.Webhook.of(p, admin)
		if err != nil {
			return err
		}
		ready.Webhook, ready.WebhookRoots = hookAt.Addr().String(), p.Authority().RootsPEM()
		run = append(run, func(ctx context.Context) error { return hook.Serve(ctx, hookAt, p.Authority().WebTLS()) })
	}
	if admin != nil {
		ready.Admin = adminAt.Addr().String()
		run = append(run, func(ctx context.Context) error { return admin.Serve(ctx, adminAt) })
	}
	if from != nil {
		run = append(run, func(ctx context.Context) error {
			return from.Watch(ctx, func() error { return conn.Send(role.Log, p.reload(ctx, from)) })
		})
	}
	if err := p.Listens(ready.Address); err != nil {
		return err
	}
	if err := p.count(&ready); err != nil {
		return err
	}
	if err := conn.Send(role.Ready, ready); err != nil {
		return err
	}
	return role.Together(ctx, p.Close, run...)
}

// sendAll sends lines of the log until ctx ends.
func sendAll(ctx context.Context, conn *role.Conn, lines <-chan string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-lines:
			if err := conn.Send(role.Log, line); err != nil {
				return err
			}
		}
	}
}

type bound func(l net.Listener, most int, turned func(connections int)) net.Listener

// bounding returns a function that limits the connections of proxies. With TLS, a new connection at the limit replaces
// the oldest one that has not completed its handshake.
func bounding(secure bool) bound {
	if secure {
		return limit.AtMostKnown
	}
	return limit.AtMost
}

// of makes the webhook of a control plane.
func (w Webhook) of(p *Plane, admin *Admin) (*injection.Webhook, error) {
	if p.Authority() == nil {
		return nil, fault.New(fault.Usage, "--webhook",
			"give the mesh certificates: \"mtls: strict\" or \"mtls: permissive\"",
			"API servers call webhooks over TLS only, and the mesh has no authority to sign the webhook's certificate")
	}
	if w.Config == nil {
		return nil, fault.New(fault.Usage, "--injection", "see docs/injection.md",
			"without it the webhook does not know what to inject")
	}
	o := injection.Options{Authority: p.Authority()}
	if admin != nil {
		o.Metrics = injection.NewMetrics(admin.registry)
	}
	return injection.New(w.Config, o)
}

// obey carries out the parent's messages until conn's input or ctx ends.
func (p *Plane) obey(ctx context.Context, conn *role.Conn) error {
	ended := make(chan error, 1)
	go func() { // ends when the parent closes its end of the pipe
		for ctx.Err() == nil {
			m, err := conn.Receive()
			if err == nil {
				err = p.handle(ctx, m, conn)
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

// handle carries out one message from the parent.
func (p *Plane) handle(ctx context.Context, m role.Message, conn *role.Conn) (err error) {
	var d Done
	switch m.Event {
	default:
		return nil
	case SetEvent:
		var c Config
		if err = json.Unmarshal(m.Data, &c); err == nil {
			d.Time, err = p.SetConfig(ctx, &c)
		}
	case EndpointsEvent:
		var of map[string][]Endpoint
		if err = json.Unmarshal(m.Data, &of); err == nil {
			d.Time, err = p.SetEndpoints(ctx, of)
		}
	}
	if _, files := errors.AsType[*FilesError](err); files {
		return conn.Fail(fault.Wrap(err, fault.CodeOf(err), m.Event, filesHint, "the configuration is in use"))
	}
	if err != nil {
		return conn.Fail(fault.Wrap(err, fault.Usage, m.Event, example, "the configuration is wrong"))
	}
	return conn.Send(m.Event, d)
}

// filesHint is the hint for a FilesError.
const filesHint = "check the directory of --credentials; writing the files will be tried again"

// reload applies the files as they are now, and returns a line for the log.
func (p *Plane) reload(ctx context.Context, from *Files) string {
	m, err := from.Read()
	if err == nil {
		_, err = p.Set(ctx, m)
	}
	if _, files := errors.AsType[*FilesError](err); files {
		return fmt.Sprintf("%s: %s; %s", from.path, err, filesHint)
	}
	var r Ready
	if err == nil {
		err = p.count(&r)
	}
	if err != nil {
		return fmt.Sprintf("the configuration stays as it was: %s", err)
	}
	return from.path + ": " + r.String()
}

// count fills in the number of proxies or, in a mesh without proxies, the numbers of resources.
func (p *Plane) count(r *Ready) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Proxies = len(p.mesh.Proxies()); r.Proxies > 0 {
		return nil
	}
	all, err := p.mesh.Shared()
	r.Clusters, r.Endpoints, r.Listeners = len(all.Clusters), len(all.Endpoints), len(all.Listeners)
	return err
}

// String returns the counts as a log line.
func (r Ready) String() string {
	switch {
	case r.Proxies == 1:
		return "1 proxy"
	case r.Proxies > 1:
		return fmt.Sprintf("%d proxies", r.Proxies)
	}
	return fmt.Sprintf("%s, %s, %s", quantity.Counted(r.Clusters, "cluster"),
		quantity.Counted(r.Endpoints, "endpoint assignment"), quantity.Counted(r.Listeners, "listener"))
}
