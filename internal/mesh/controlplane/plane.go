package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/mesh/controlplane/ads"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/bootstrap"
	"tare/internal/mesh/controlplane/proxyconfig"
)

// PlaneOptions configures a Plane. The zero value is valid.
type PlaneOptions struct {
	// Roots is the directory that keeps the root certificates, so that proxies still trust a control plane after a
	// restart. Empty: the roots are kept in memory only.
	Roots string
	// Credentials is a directory in which each proxy of a mesh gets a directory named by its id, with its bootstrap
	// (authority.EnvoyBootstrapFile), its certificate and the roots. Certificates and roots are replaced before they
	// expire. Empty: no files are written.
	Credentials string
	Life        time.Duration // of certificates; default authority.DefaultLife
	RenewAfter  float64       // as in authority.Options
	// Accounts verifies the service account tokens of a Kubernetes cluster. Agents exchange such a token for their first
	// certificate, whose private key they generate (authority.Agent). Nil: certificates are only renewed.
	Accounts *authority.ServiceAccounts
	// Names are the DNS names of the control plane for peers without an identity in the mesh, such as API servers
	// (authority.Authority.WebTLS).
	Names []string
	// Strangers is the maximum number of open connections from peers that have shown no certificate, if proxies need one;
	// above it, the oldest is closed. Default authority.DefaultMaxStrangers.
	Strangers int
	// RetryAfter is the time after which failed replacements of certificates and files are retried; default 5 s.
	RetryAfter time.Duration
	OnSent     func(Sent)
	OnAnswer   func(Answer)
	Admin      *Admin // metrics and the history of changes; nil: none
	// Log gets a line for each refused peer (rate-limited by host), for each step of a root's rollover, and for
	// certificates and files that could not be replaced.
	Log func(line string)
}

// Plane is the control plane of one mesh file. If the file has proxies, each proxy gets only what concerns it. If
// proxies have identities, they must prove them, and they get certificates.
type Plane struct {
	o         PlaneOptions
	server    *Server
	authority *authority.Authority // nil: the mesh has no certificates
	renewals  renewals             // issued by the authority and not yet sent to proxies
	retry     *time.Timer          // fires when failed replacements must be tried again

	mu      sync.Mutex
	mesh    *proxyconfig.Mesh
	shared  bool              // every node gets the same
	written map[string]string // what each proxy's files were made from: certificate chain, roots, address
	overdue map[string]bool   // proxies whose files could not be written
	bound   string            // address of the listener, host:port
	parts   map[string]part   // the part that each proxy got last, by the proxy's id
}

// part holds what a proxy of a mesh got last, without its secrets, and its identity at that time.
type part struct {
	proxyconfig.Part
	identity string
}

// NewPlane makes the control plane of a mesh, and sets the mesh. Whether the mesh has certificates, and their trust
// domain, cannot change afterwards.
func NewPlane(ctx context.Context, m *proxyconfig.Mesh, o PlaneOptions) (*Plane, error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if o.RetryAfter <= 0 {
		o.RetryAfter = 5 * time.Second
	}
	p := &Plane{
		o: o, retry: time.NewTimer(0), written: map[string]string{}, overdue: map[string]bool{},
		parts: map[string]part{},
	}
	p.retry.Stop()
	p.renewals.init()
	options := Options{Options: ads.Options{Key: p.key, OnSent: o.OnSent, OnAnswer: o.OnAnswer}}
	if m.Secure() {
		ao := authority.Options{
			TrustDomain: m.TrustDomain(), Life: o.Life, RenewAfter: o.RenewAfter, Log: o.Log, OwnNames: o.Names,
			MaxStrangers: o.Strangers,
			OnChange:     p.renewals.identity, OnRoots: p.roots,
		}
		var err error
		if o.Roots != "" {
			p.authority, err = authority.Open(ao, o.Roots)
		} else {
			p.authority, err = authority.New(ao)
		}
		if err != nil {
			return nil, err
		}
		options.Check = p.check
		options.Credentials = p.authority.ServerCredentials()
		options.Server = []grpc.ServerOption{
			grpc.ChainStreamInterceptor(p.authority.RequireIdentity()),
			grpc.ReadBufferSize(0), // crypto/tls has its own buffer
		}
	}
	if o.Admin != nil {
		o.Admin.watch(&options)
		o.Admin.streams, o.Admin.proxies = func() int { return p.server.Streams() }, p.proxies
	}
	p.server = New(options)
	if p.authority != nil {
		authority.NewService(p.authority, authority.ServiceOptions{Accounts: o.Accounts}).Register(p.server.Registrar())
	}
	if _, err := p.Set(ctx, m); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// key implements ads.Options.Key. If the mesh has certificates, the peer must have the node's identity.
func (p *Plane) key(ctx context.Context, id string) (string, error) {
	p.mu.Lock()
	mesh, shared := p.mesh, p.shared
	p.mu.Unlock()
	if shared {
		return everyone, nil
	}
	if !mesh.Has(id) {
		return "", status.Errorf(codes.PermissionDenied, "there is no proxy %.200q in the mesh", id)
	}
	if p.authority != nil {
		if err := p.authority.Authorize(ctx, mesh.Identity(id)); err != nil {
			return "", err
		}
	}
	return p.keyOf(mesh, id), nil
}

// check implements ads.Options.Check: it returns an error if a stream's certificate has expired, or if its root is no
// longer trusted. Without this check, a peer with a stolen key would receive renewed keys while its stream is open.
func (p *Plane) check(ctx context.Context) error {
	if _, err := p.authority.Identity(ctx); err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}

// roots ends the streams of proxies whose certificates come from a root that is no longer trusted, and makes Run send
// the new roots to all proxies.
func (p *Plane) roots() {
	p.server.Check()
	p.renewals.roots()
}

// beforeIdentity separates a proxy's id from its identity in a key.
const beforeIdentity = "\x00"

// nodeOf returns the proxy's id in a key, for messages.
func nodeOf(key string) string {
	id, _, _ := strings.Cut(key, beforeIdentity)
	return id
}

// keyOf returns the key of a proxy of a mesh. If proxies prove their identities, the key includes the identity: a
// stream is authorized for one identity, and if the proxy's identity changes, the stream must end rather than receive
// the new identity's private key.
func (p *Plane) keyOf(m *proxyconfig.Mesh, id string) string {
	if p.authority == nil {
		return id
	}
	return id + beforeIdentity + m.Identity(id)
}

// proxies returns the number of proxies.
func (p *Plane) proxies() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.parts)
}

// Serve answers at l until Close. It closes l.
func (p *Plane) Serve(l net.Listener) error { return p.server.Serve(l) }

// Listens sets the control plane's address, and writes the proxies' files, which contain it.
func (p *Plane) Listens(address string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound = address
	return p.write(p.mesh.Proxies())
}

// Run replaces certificates before they expire, and retries files that could not be written, until ctx ends.
func (p *Plane) Run(ctx context.Context) error {
	run := []func(context.Context) error{p.follow}
	if p.authority != nil {
		run = append(run, p.authority.Run)
	}
	return role.Together(ctx, func() {}, run...)
}

// follow sends proxies what the authority issues, and retries what failed, until ctx ends.
func (p *Plane) follow(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.renewals.wake:
		case <-p.retry.C:
		}
		if err := p.renew(ctx); err != nil {
			p.o.Log(err.Error())
			p.retry.Reset(p.o.RetryAfter)
		}
	}
}

// Close ends all streams and releases the roots.
func (p *Plane) Close() {
	p.server.Close()
	if p.authority != nil {
		p.authority.Close()
	}
}

// Authority returns the authority of the mesh's certificates; nil if the mesh has none.
func (p *Plane) Authority() *authority.Authority { return p.authority }

// FilesError means that the proxies have the new mesh, but some of their files could not be written. Run tries again.
type FilesError struct{ Err error }

func (e *FilesError) Error() string {
	return "the proxies that are connected are up to date, but not all files of proxies could be written: " +
		strings.ReplaceAll(e.Err.Error(), "\n", "; ") // one line of a log
}

func (e *FilesError) Unwrap() error { return e.Err }

// Set makes m the mesh. It returns the same as Server.Set, and a FilesError if m is in use but not all files could be
// written; any other error leaves the mesh as it was.
//
// A proxy whose part has not changed costs only a comparison of pointers. Parts that Config.CompileAfter took over from
// the current mesh count as unchanged.
func (p *Plane) Set(ctx context.Context, m *proxyconfig.Mesh) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set(ctx, m)
}

// SetConfig compiles a configuration, with CompileAfter, and makes it the mesh. It returns the same as Set.
func (p *Plane) SetConfig(ctx context.Context, c *Config) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := c.CompileAfter(p.mesh)
	if err != nil {
		return 0, err
	}
	return p.set(ctx, m)
}

// SetEndpoints replaces the endpoints of some services of the mesh, by service name. It returns the same as Set.
func (p *Plane) SetEndpoints(ctx context.Context, of map[string][]Endpoint) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.mesh.WithEndpoints(of)
	if err != nil {
		return 0, err
	}
	return p.set(ctx, m)
}

// set implements Set. The caller must hold mu.
func (p *Plane) set(ctx context.Context, m *proxyconfig.Mesh) (int64, error) {
	switch {
	case m.Secure() != (p.authority != nil):
		return 0, errors.New("mtls: cannot be turned on or off while the control plane runs: restart it")
	case p.authority != nil && m.TrustDomain() != p.authority.TrustDomain():
		return 0, fmt.Errorf("trust_domain: must stay %s while the control plane runs: restart it to change it",
			p.authority.TrustDomain())
	}
	at, files, err := p.send(ctx, m)
	if err != nil {
		return 0, err
	}
	p.mesh = m
	if p.o.Admin != nil {
		p.o.Admin.changes.Inc()
	}
	for id := range p.overdue {
		if m.Has(id) {
			files = append(files, id)
		}
	}
	clear(p.overdue) // some of the proxies may be gone
	if err := p.write(files); err != nil {
		p.retry.Reset(p.o.RetryAfter)
		return at, &FilesError{err}
	}
	return at, nil
}

// renew sends proxies their new certificates or roots, and replaces their files, as well as all files that are overdue.
// The next call repeats what fails.
func (p *Plane) renew(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids, all := p.renewals.take()
	var concerned, files []string
	for _, id := range p.mesh.Proxies() {
		renewed := all || ids[p.mesh.Identity(id)]
		if renewed {
			concerned = append(concerned, id)
		}
		if renewed || p.overdue[id] {
			files = append(files, id)
		}
	}
	sent := p.sendSecrets(ctx, concerned)
	if sent != nil {
		p.renewals.putBack(ids, all)
		sent = fmt.Errorf("certificates could not be replaced: %w", sent)
	}
	written := p.write(files)
	if written != nil && sent == nil {
		written = &FilesError{written}
	}
	return errors.Join(sent, written)
}

// sendSecrets sends some proxies their current certificates and roots. The caller must hold mu.
func (p *Plane) sendSecrets(ctx context.Context, ids []string) error {
	some := make(map[string][]*tlsv3.Secret, len(ids))
	var errs []error
	for _, id := range ids {
		own, err := p.own(p.mesh, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		some[p.keyOf(p.mesh, id)] = own.Secrets
	}
	return errors.Join(append(errs, p.server.SetSecrets(ctx, some))...)
}

// own returns the resources that only one proxy gets, with its secrets.
func (p *Plane) own(m *proxyconfig.Mesh, id string) (Resources, error) {
	part, err := m.Part(id)
	if err != nil {
		return Resources{}, err
	}
	own := *part.Own
	if p.authority == nil {
		return own, nil
	}
	secrets, err := p.authority.Secrets(m.Identity(id))
	if err != nil {
		return own, fmt.Errorf("proxy %s: %w", id, err)
	}
	own.Secrets = append(slices.Clip(own.Secrets), secrets...)
	return own, nil
}

// send sends each proxy of a mesh what concerns it, and forgets identities that are no longer in use. It skips proxies
// whose part is unchanged, and returns the ids of all others. The caller must hold mu.
func (p *Plane) send(ctx context.Context, m *proxyconfig.Mesh) (at int64, ids []string, err error) {
	proxies := m.Proxies()
	if len(proxies) == 0 {
		r, err := m.Shared()
		if err != nil {
			return 0, nil, err
		}
		if at, err = p.server.Set(ctx, r); err == nil { // this removes the keys of proxies
			p.shared = true
			clear(p.parts)
		}
		return at, nil, err
	}
	some := map[string]View{}
	parts := make(map[string]part, len(proxies))
	for _, id := range proxies {
		now, err := m.Part(id)
		if err != nil {
			return 0, nil, err
		}
		parts[id] = part{now, m.Identity(id)}
		if before, was := p.parts[id]; was && before == parts[id] {
			continue
		}
		own, err := p.own(m, id)
		if err != nil {
			return 0, nil, err
		}
		some[p.keyOf(m, id)] = View{Common: now.Common, Own: own}
		ids = append(ids, id)
	}
	gone := p.gone(parts)
	if p.shared || p.mesh == nil {
		at, err = p.server.SetAll(ctx, some)
	} else {
		at, err = p.server.Change(ctx, some, gone)
	}
	if err != nil {
		return 0, nil, err
	}
	if len(gone) > 0 {
		p.forget(parts)
	}
	p.shared, p.parts = false, parts
	return at, ids, nil
}

// gone returns the keys of proxies that no longer exist, or whose identity has changed.
func (p *Plane) gone(now map[string]part) (keys []string) {
	for id, before := range p.parts {
		if after, stays := now[id]; !stays || p.authority != nil && after.identity != before.identity {
			keys = append(keys, p.keyOf(p.mesh, id))
		}
	}
	return keys
}

// forget forgets the identities that no proxy has any more.
func (p *Plane) forget(now map[string]part) {
	if p.authority == nil {
		return
	}
	stay := make(map[string]bool, len(now))
	for _, t := range now {
		stay[t.identity] = true
	}
	for _, t := range p.parts {
		if !stay[t.identity] {
			p.authority.Forget(t.identity)
		}
	}
}

// directory returns the directory of a proxy's files, or an error if the proxy's id cannot name a directory.
func (p *Plane) directory(id string) (string, error) {
	if strings.ContainsAny(id, "/\x00") || !filepath.IsLocal(id) || id == "." {
		return "", fault.New(fault.Usage, "proxy "+id,
			"give it an id that can name a directory: not empty, . or .., and without slashes",
			"its files need a directory of that name, and it is not a valid one")
	}
	return filepath.Join(p.o.Credentials, id), nil
}

// write writes the files of some proxies, if they are out of date. If it cannot write a proxy's files, it records the
// proxy as overdue and continues with the others. The caller must hold mu.
func (p *Plane) write(proxies []string) error {
	if p.o.Credentials == "" || p.bound == "" {
		return nil
	}
	// Another user who can write to this directory could replace the proxies' directories.
	unsafe := authority.CheckDirectory(p.o.Credentials)
	errs := []error{unsafe}
	for _, id := range proxies {
		p.overdue[id] = true
		if unsafe != nil {
			continue
		}
		dir, err := p.directory(id)
		if err == nil {
			err = p.writeOne(id, dir)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("writing the files of proxy %s: %w", id, err))
			continue
		}
		delete(p.overdue, id)
	}
	return errors.Join(errs...)
}

func (p *Plane) writeOne(id, dir string) error {
	var c authority.Credentials
	if p.authority != nil {
		var err error
		if c, err = p.authority.Credentials(p.mesh.Identity(id)); err != nil {
			return err
		}
	}
	now := string(c.Chain) + string(c.Roots) + p.bound
	if p.written[id] == now {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	b := bootstrap.Envoy{Node: id, Cluster: cmp.Or(account(p.mesh.Identity(id)), id), ControlPlane: p.bound}
	if err := c.WriteEnvoy(dir, b); err != nil {
		return err
	}
	p.written[id] = now
	return nil
}

// account returns the last part of an identity, the service account.
func account(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }
