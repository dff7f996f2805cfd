package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/proxy/config"
	"tare/internal/mesh/proxy/dataplane"
	"tare/internal/mesh/xds"
)

// planeClient does what a control plane says.
type planeClient struct {
	*xds.Client
	agent *authority.Agent // gets certificates by a token; nil: they are there
	first chan struct{}    // closed once it has one
}

// Run is the client's, which begins once there is a certificate.
func (c *planeClient) Run(ctx context.Context) error {
	if c.agent == nil {
		return c.Client.Run(ctx)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.agent.Run(ctx) }()
	select {
	case <-c.first:
	case err := <-ended:
		return err
	}
	err := c.Client.Run(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// maxKept bounds the memory of all that a control plane says, in bytes: some 7,000 services of 20 endpoints. A proxy is
// told what concerns it; and by default its garbage may gather to four times what lives.
const maxKept = 40 << 20

// newPlaneClient makes one, whose Run has the source do what the control plane says. listening is closed once there are
// listeners.
func newPlaneClient(o Options, s *source, logs *logs, listening chan struct{}) (*planeClient, error) {
	var once sync.Once
	last := ""
	options := xds.Options{
		Address:  o.XDS,
		Node:     o.Node,
		Consumer: s,
		Limits:   xds.Limits{Bytes: maxKept},
		OnEvent: func(e xds.Event) {
			for _, err := range e.Refused {
				logs.say("refused: " + err.Error())
			}
			if len(s.plane.Listening()) > 0 { // what they waited for may have come after them
				once.Do(func() { close(listening) })
			}
		},
		OnState: func(st xds.State) {
			line := fmt.Sprintf("control plane %s: %s", o.XDS, st.Phase)
			if st.Err != nil {
				line += ": " + st.Err.Error()
			}
			if line != last { // each attempt in vain says the same
				last = line
				logs.say(line)
			}
		},
	}
	made := &planeClient{}
	if o.Credentials != "" || o.Identity != "" {
		var p *proof
		var err error
		if o.Identity != "" {
			p, made.agent, made.first = proofByToken(o, logs)
		} else {
			p, err = newProof(o.Credentials)
		}
		if err != nil {
			return nil, err
		}
		s.onSecret = p.told
		options.Credentials = credentials.NewTLS(p.config())
	}
	c, err := xds.New(options)
	if err != nil {
		return nil, err
	}
	made.Client = c
	return made, nil
}

// ownWord is what the proxy says of itself.
type ownWord struct {
	dataplane.Stats
	*controlStats
}

// controlStats is what the proxy has heard of its control plane since it began.
type controlStats struct {
	Streams   uint64 `json:"control_streams"`
	Responses uint64 `json:"control_responses"`
	Secrets   uint64 `json:"control_secrets"` // of the responses, those with certificates and roots
	Refused   uint64 `json:"control_refused"` // responses, or parts of them
}

// stats are the counters now; nil where a file configures the proxy.
func (f *planeClient) stats() *controlStats {
	if f == nil {
		return nil
	}
	m := f.Metrics()
	s := &controlStats{Streams: m.Streams, Secrets: m.Responses[xds.Secrets]}
	for k := range m.Responses {
		s.Responses += m.Responses[k]
		s.Refused += m.Nacks[k]
	}
	return s
}

// proof is what the proxy proves itself by to its control plane, and knows that by. At first that is what a directory
// has, or what it got by a bootstrap token; once the control plane has told the proxy its certificate and the roots, it
// is these, which the control plane replaces: the proxy may have given up the rights to read the directory by then.
type proof struct {
	dir    string
	server string // the control plane's identity

	mu       sync.Mutex
	byPlane  bool // the control plane has told the certificate
	identity *tls.Certificate
	roots    *x509.CertPool
}

func newProof(dir string) (*proof, error) {
	p := &proof{dir: dir}
	return p, p.read()
}

// readToken reads a token, which is short.
func readToken(path string) ([]byte, error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 64<<10))
}

// proofByToken is what an agent gets by a token, and gets again: a control plane that was away for longer than a
// certificate lasts is shown a token once more. first is closed once there is something.
func proofByToken(o Options, logs *logs) (p *proof, a *authority.Agent, first chan struct{}) {
	p, first = &proof{byPlane: true}, make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	return p, &authority.Agent{Address: o.XDS, Identity: o.Identity, Roots: o.Roots, Log: logs.say,
		ReadToken: func() (authority.Token, error) {
			text, err := readToken(o.TokenFile)
			if err != nil {
				return "", fault.Wrap(err, fault.Machine, o.TokenFile, "", "the token cannot be read")
			}
			return authority.Token(strings.TrimSpace(string(text))), nil
		},
		OnChange: func(c authority.Credentials) error {
			next := &proof{}
			if err := next.take(c); err != nil {
				return err
			}
			p.mu.Lock()
			p.server, p.identity, p.roots = next.server, next.identity, next.roots
			p.mu.Unlock()
			once()
			return nil
		}}, first
}

// read takes what the directory has.
func (p *proof) read() error {
	c, err := authority.ReadEnvoy(p.dir)
	if err != nil {
		return err
	}
	next := &proof{}
	if err := next.take(c); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.byPlane { // since it was looked at
		p.server, p.identity, p.roots = next.server, next.identity, next.roots
	}
	return nil
}

// take takes credentials, of a proof that nobody else has yet.
func (p *proof) take(c authority.Credentials) error {
	server, err := c.ControlPlane()
	if err != nil {
		return err
	}
	pair, err := c.Certificate()
	if err != nil {
		return err
	}
	roots, err := c.Pool()
	if err != nil {
		return err
	}
	p.server, p.identity, p.roots = server, &pair, roots
	return nil
}

// told takes a secret that the control plane has told.
func (p *proof) told(s *config.Secret) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case s.Name == authority.IdentitySecret && s.Certificate != nil:
		p.identity, p.byPlane = s.Certificate, true
	case s.Name == authority.RootsSecret && s.Roots != nil:
		p.roots = s.Roots
	}
}

// now is what there is at the moment. A certificate of the directory may have been replaced there meanwhile; one that
// cannot be read any more stays what it was.
func (p *proof) now() (identity *tls.Certificate, roots *x509.CertPool, server string) {
	p.mu.Lock()
	byPlane := p.byPlane
	p.mu.Unlock()
	if !byPlane {
		_ = p.read() // else that of before: the handshake shows whether it will do
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.identity, p.roots, p.server
}

// config is for connections to the control plane: each by what there is at its time.
func (p *proof) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // by host name; VerifyConnection checks chain and identity
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			identity, _, _ := p.now()
			return identity, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			_, roots, server := p.now()
			id, err := authority.Verify(s.PeerCertificates, roots, x509.ExtKeyUsageServerAuth, time.Now())
			if err == nil && id != server {
				err = errors.New("the server is " + id + ", and not the control plane")
			}
			return err
		},
	}
}
