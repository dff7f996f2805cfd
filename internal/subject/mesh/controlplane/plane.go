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

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"tare/internal/fault"
	"tare/internal/subject/mesh/controlplane/authority"
	"tare/internal/subject/mesh/controlplane/proxyconfig"
)

// PlaneOptions are how a Plane tells a mesh. The zero value will do.
type PlaneOptions struct {
	// Roots is the directory that keeps the roots of certificates, so that a control plane that starts again is the one
	// that proxies trust. Empty: they are nowhere but in this process.
	Roots string
	// Credentials is the directory in which each proxy of a mesh finds what it connects by, in a directory named after
	// it: its bootstrap (EnvoyBootstrapFile), its certificate and the roots, which are replaced before they end. Empty:
	// none is written.
	Credentials string
	Life        time.Duration // of certificates; default authority.DefaultLife
	// Tokens are the bootstrap tokens by which agents get the first certificate of a key of their own
	// (authority.Agent); nil: certificates are only renewed.
	Tokens   *authority.Tokens
	OnSent   func(Sent)
	OnAnswer func(Answer)
	// Log gets a line for each peer that was refused and each certificate that could not be replaced.
	Log func(line string)
}

// Plane is the control plane of one mesh file. Where the file has proxies, each is told what concerns it; where proxies
// have identities, they must prove them, and get certificates.
type Plane struct {
	o         PlaneOptions
	server    *Server
	authority *authority.Authority // nil: the mesh has no certificates
	renewed   chan struct{}        // something that Secrets gives has changed

	mu       sync.Mutex
	mesh     *proxyconfig.Mesh
	shared   bool              // every node is told the same
	written  map[string]string // what a proxy has in its directory: its chain and the roots
	bound    string            // address of the listener, host:port
	identity map[string]bool   // those with secrets
}

// NewPlane makes the control plane of a mesh, which it is told at once. Whether the mesh has certificates, and of which
// trust domain, stays as it is then.
func NewPlane(ctx context.Context, m *proxyconfig.Mesh, o PlaneOptions) (*Plane, error) {
	if o.Log == nil {
		o.Log = func(string) {}
	}
	p := &Plane{o: o, renewed: make(chan struct{}, 1), written: map[string]string{}, identity: map[string]bool{}}
	options := Options{Key: p.key, OnSent: o.OnSent, OnAnswer: o.OnAnswer}
	if m.Secure() {
		ao := authority.Options{
			TrustDomain: m.TrustDomain(), Life: o.Life, Log: o.Log,
			OnChange: func(string) { p.renew() }, OnRoots: p.renew,
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
		options.Server = []grpc.ServerOption{
			grpc.Creds(credentials.NewTLS(p.authority.ServerTLS())), grpc.StreamInterceptor(p.authority.RequireIdentity()),
		}
	}
	p.server = New(options)
	if p.authority != nil {
		authority.NewService(p.authority, o.Tokens, authority.ServiceOptions{}).Register(p.server.Registrar())
	}
	if _, err := p.Set(ctx, m); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// renew has Run tell the proxies of new certificates.
func (p *Plane) renew() {
	select {
	case p.renewed <- struct{}{}:
	default: // it is about to
	}
}

// key is what a stream is told: what is for its node, who must be that proxy.
func (p *Plane) key(ctx context.Context, node *corev3.Node) (string, error) {
	p.mu.Lock()
	mesh, shared := p.mesh, p.shared
	p.mu.Unlock()
	if shared {
		return everyone, nil
	}
	id := node.GetId()
	if !slices.Contains(mesh.Proxies(), id) {
		return "", status.Errorf(codes.PermissionDenied, "there is no proxy %.200q in the mesh", id)
	}
	if p.authority != nil {
		if err := p.authority.Authorize(ctx, mesh.Identity(id)); err != nil {
			return "", err
		}
	}
	return id, nil
}

// Serve answers at l until Close. It closes l.
func (p *Plane) Serve(l net.Listener) error { return p.server.Serve(l) }

// Listens tells proxies where the control plane is: their files are written now and from then on.
func (p *Plane) Listens(address string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound = address
	return p.write()
}

// Run replaces certificates before they end, until ctx does.
func (p *Plane) Run(ctx context.Context) error {
	if p.authority == nil {
		<-ctx.Done()
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- p.authority.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-p.renewed:
			p.mu.Lock()
			_, err := p.tell(ctx, p.mesh)
			if err == nil {
				err = p.write()
			}
			p.mu.Unlock()
			if err != nil {
				p.o.Log("certificates could not be replaced: " + err.Error())
			}
		}
	}
}

// Close ends all streams and lets the roots go.
func (p *Plane) Close() {
	p.server.Close()
	if p.authority != nil {
		p.authority.Close()
	}
}

// Authority is that of the mesh's certificates; nil where it has none.
func (p *Plane) Authority() *authority.Authority { return p.authority }

// Set makes m the mesh. It returns the same as Server.Set.
func (p *Plane) Set(ctx context.Context, m *proxyconfig.Mesh) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case m.Secure() != (p.authority != nil):
		return 0, errors.New("mtls: whether there are certificates cannot change while the control plane runs: start it again")
	case p.authority != nil && m.TrustDomain() != p.authority.TrustDomain():
		return 0, fmt.Errorf("trust_domain: it is %s as long as the control plane runs: start it again",
			p.authority.TrustDomain())
	}
	at, err := p.tell(ctx, m)
	if err != nil {
		return 0, err
	}
	p.mesh = m
	return at, p.write()
}

// tell has each proxy of a mesh told what concerns it, and forgets the identities of others. The caller holds mu.
func (p *Plane) tell(ctx context.Context, m *proxyconfig.Mesh) (int64, error) {
	proxies := m.Proxies()
	if len(proxies) == 0 {
		r, err := m.Shared()
		if err != nil {
			return 0, err
		}
		shared := p.shared
		p.shared = true
		if !shared && p.mesh != nil { // there were proxies before
			return p.server.SetAll(ctx, map[string]Resources{everyone: r})
		}
		return p.server.Set(ctx, r)
	}
	all := make(map[string]Resources, len(proxies))
	identities := map[string]bool{}
	for _, id := range proxies {
		r, err := m.For(id)
		if err != nil {
			return 0, err
		}
		if p.authority != nil {
			secrets, err := p.authority.Secrets(m.Identity(id))
			if err != nil {
				return 0, fmt.Errorf("proxy %s: %w", id, err)
			}
			r.Secrets = append(slices.Clip(r.Secrets), secrets...)
			identities[m.Identity(id)] = true
		}
		all[id] = r
	}
	at, err := p.server.SetAll(ctx, all)
	if err != nil {
		return 0, err
	}
	p.shared = false
	for id := range p.identity {
		if !identities[id] {
			p.authority.Forget(id)
		}
	}
	p.identity = identities
	return at, nil
}

// directory is where a proxy's files are, by its id: a name of one part.
func (p *Plane) directory(id string) (string, error) {
	if strings.ContainsAny(id, "/\x00") || !filepath.IsLocal(id) || id == "." {
		return "", fault.New(fault.Usage, "proxy "+id, "give it an id without slashes",
			"its id cannot be the name of a directory, which its files need")
	}
	return filepath.Join(p.o.Credentials, id), nil
}

// write writes the files of all proxies that have not what they should. The caller holds mu.
func (p *Plane) write() error {
	if p.o.Credentials == "" || p.bound == "" {
		return nil
	}
	if err := authority.CheckDirectory(p.o.Credentials); err != nil {
		return err // whoever can write there could put other directories in the place of the proxies'
	}
	for _, id := range p.mesh.Proxies() {
		dir, err := p.directory(id)
		if err != nil {
			return err
		}
		if err := p.writeOne(id, dir); err != nil {
			return fmt.Errorf("writing the files of proxy %s: %w", id, err)
		}
	}
	return nil
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
	b := EnvoyBootstrap{Node: id, Cluster: cmp.Or(account(p.mesh.Identity(id)), id), ControlPlane: p.bound}
	if p.authority != nil {
		if err := c.WriteEnvoy(dir); err != nil {
			return err
		}
		var err error
		if b.Transport, err = authority.EnvoyTransport(dir, p.authority.TrustDomain()); err != nil {
			return err
		}
	}
	text, err := b.JSON()
	if err != nil {
		return err
	}
	if err := authority.WritePrivate(dir, EnvoyBootstrapFile, text); err != nil {
		return err
	}
	p.written[id] = now
	return nil
}

// account is the last part of an identity.
func account(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }
