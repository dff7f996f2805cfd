// Package authority is the certificate authority of the control plane, and verifies the identities of proxies.
//
// Certificates are SPIFFE's (X509-SVID): ECDSA on P-256, short-lived, with one URI and no other name. The root signs
// them directly. Envoy and similar proxies get their keys, certificates and roots through SDS (Secrets). Agents that
// keep their private key to themselves request a signature with the token of a service account, and later with their
// current certificate (Service, Agent). Proxies configured by files get theirs from Credentials.WriteFiles.
package authority

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
)

// Options configures an authority. The zero value is valid.
type Options struct {
	TrustDomain string        // default DefaultTrustDomain
	Life        time.Duration // of certificates, at least 1 s; default DefaultLife
	RootLife    time.Duration // of roots; default DefaultRootLife. No certificate outlives its root
	Backdate    time.Duration // how far peers' clocks may be behind; default DefaultBackdate, negative: not at all
	// RenewAfter is the fraction of its life after which a certificate is replaced, in (0, 1); default DefaultRenewAfter.
	// Up to a tenth of it is subtracted at random, so that certificates issued together are not replaced together.
	RenewAfter    float64
	MaxIdentities int // the most identities that can have secrets at the same time; default DefaultMaxIdentities
	// MaxStrangers is the maximum number of open connections of ServerCredentials whose peers have shown no certificate;
	// above it, the oldest is closed. Default DefaultMaxStrangers.
	MaxStrangers int

	// Names returns the DNS names in the certificates of an identity, for peers that can verify host names but not URIs
	// (nginx, HAProxy). nil: none. Agents' certificates never have any.
	Names func(id string) []string
	// OwnNames are the DNS names in the control plane's own certificate, for peers that verify its name (WebTLS).
	OwnNames []string

	// OnChange is called by Run when Secrets has a new secret for an identity. OnRoots is called by the goroutine that
	// changed the roots, after the change.
	OnChange func(id string)
	OnRoots  func()
	// Log gets a line for each refusal (rate-limited by host), for failed renewals (rate-limited) and for each step of a
	// rollover. Lines contain neither keys nor tokens.
	Log func(line string)
}

// The defaults of Options.
const (
	DefaultLife          = time.Hour
	DefaultRootLife      = 365 * 24 * time.Hour
	DefaultBackdate      = time.Minute
	DefaultRenewAfter    = 0.5
	DefaultMaxIdentities = 10_000
	DefaultMaxStrangers  = 256
)

// jitter is the largest fraction of RenewAfter that is subtracted at random.
const jitter = 0.1

func (o Options) withDefaults() (Options, error) {
	o.TrustDomain = cmp.Or(o.TrustDomain, DefaultTrustDomain)
	o.Life = cmp.Or(o.Life, DefaultLife)
	o.RootLife = cmp.Or(o.RootLife, DefaultRootLife)
	o.Backdate = max(cmp.Or(o.Backdate, DefaultBackdate), 0)
	o.RenewAfter = cmp.Or(o.RenewAfter, DefaultRenewAfter)
	o.MaxIdentities = cmp.Or(o.MaxIdentities, DefaultMaxIdentities)
	o.MaxStrangers = cmp.Or(o.MaxStrangers, DefaultMaxStrangers)
	switch {
	case o.Life < time.Second || o.RootLife < o.Life:
		return o, fault.New(fault.Usage, "", "",
			"certificates must live 1s to %s, the life of the root, got %s", o.RootLife, o.Life)
	case o.RenewAfter < 0 || o.RenewAfter >= 1:
		return o, fault.New(fault.Usage, "", "",
			"certificates must be renewed after a part of their life above 0 and below 1, got %g", o.RenewAfter)
	case o.MaxIdentities < 0:
		return o, fault.New(fault.Usage, "", "",
			"the largest number of identities must be above 0, got %d", o.MaxIdentities)
	}
	return o, CheckTrustDomain(o.TrustDomain)
}

// Authority issues certificates of one trust domain. Its methods may be called concurrently.
type Authority struct {
	o     Options
	store *store // nil: the roots are in memory only

	trust atomic.Pointer[trust]
	step  sync.Mutex // held during each step of a rollover, so that only one runs at a time

	mu      sync.Mutex
	issued  map[string]*entry
	changed map[string]bool // identities for which OnChange must still be called
	wake    chan struct{}   // makes Run look for certificates that are due
	wakes   time.Time       // when Run will look even if it is not woken
	signed  signed          // the certificates of agents
	own     entry           // the control plane's certificate
	served  atomic.Pointer[serving]
	running atomic.Bool
	refused *limits // limits the refusals that are logged, by host

	strangers *limit.Latest // connections whose peers have shown no certificate
}

// trust holds the roots that an authority trusts and signs with. It is immutable; a change replaces it.
type trust struct {
	issuing *root   // the one that signs; it has a key
	roots   []*root // all trusted roots, the issuing one first
	pem     []byte
	pool    *x509.CertPool
	secret  *tlsv3.Secret
}

// root is a root certificate. A root that no longer signs has no key.
type root struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         []byte
}

func (r *root) name() string { return hex.EncodeToString(r.certificate.SubjectKeyId[:8]) }

// New makes an authority with a new root. Its keys exist in this process only.
func New(o Options) (*Authority, error) { return open(o, nil) }

// Open opens an authority whose roots are kept in a directory, in a file of mode 0600. It makes a root if there is
// none. The directory must belong to this user or root, and no other user may be able to write to it. One process at a
// time can use it; Close releases it.
func Open(o Options, dir string) (*Authority, error) {
	s, err := openStore(dir)
	if err != nil {
		return nil, err
	}
	a, err := open(o, s)
	if err != nil {
		s.close()
	}
	return a, err
}

func open(o Options, s *store) (*Authority, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Authority{
		o: o, store: s, issued: map[string]*entry{}, changed: map[string]bool{}, wake: make(chan struct{}, 1),
		refused: newLimits(refusalRate, refusalBurst), strangers: limit.NewLatest(o.MaxStrangers),
	}
	a.own.id = ControlPlane(o.TrustDomain)
	t, err := a.load()
	if err != nil {
		return nil, err
	}
	a.trust.Store(t)
	return a, nil
}

// load returns the trust that the store holds. If there is none, load makes a new root, and saves and returns the trust
// of that root.
func (a *Authority) load() (*trust, error) {
	if a.store != nil {
		t, err := a.store.read(a.o.TrustDomain)
		if !errors.Is(err, fs.ErrNotExist) {
			last := time.Now().Add(a.o.Life) // agents' certificates are not recorded: some may be valid until then
			a.signed = signed{before: last, now: last}
			return t, err
		}
	}
	r, err := newRoot(a.o)
	if err != nil {
		return nil, err
	}
	t := newTrust(r)
	return t, a.save(t)
}

func (a *Authority) save(t *trust) error {
	if a.store == nil {
		return nil
	}
	return a.store.write(t)
}

// Close releases the directory of the roots. It does not end Run.
func (a *Authority) Close() {
	if a.store != nil {
		a.store.close()
	}
}

// TrustDomain returns the authority's trust domain.
func (a *Authority) TrustDomain() string { return a.o.TrustDomain }

// RootsPEM returns the certificates of all trusted roots. Their order has no meaning.
func (a *Authority) RootsPEM() []byte { return a.trust.Load().pem }

func (a *Authority) logf(format string, args ...any) {
	if a.o.Log != nil {
		a.o.Log(fmt.Sprintf(format, args...))
	}
}

// Limits on the logged refusals of one host: the rate per second, and the burst.
const (
	refusalRate  = 1
	refusalBurst = 50
)

// refuse logs that a peer's request was refused, within the limits.
func (a *Authority) refuse(ctx context.Context, format string, args ...any) {
	if host, address := addressOf(ctx); a.refused.take(host) {
		a.logf("%s: refused "+format, append([]any{address}, args...)...)
	}
}

// newTrust makes the trust of one root, or of two: first the one that signs; then the next one, with its key, or the
// previous one, without its key.
func newTrust(roots ...*root) *trust {
	t := &trust{issuing: roots[0], roots: roots, pool: x509.NewCertPool()}
	byName := slices.SortedFunc(slices.Values(roots), func(a, b *root) int { return strings.Compare(a.name(), b.name()) })
	for _, r := range byName { // sorted, so that the proxies' secret does not depend on which root signs
		t.pem = append(t.pem, r.pem...)
		t.pool.AddCert(r.certificate)
	}
	t.secret = rootsSecret(t.pem)
	return t
}

// newRoot makes a self-signed root that is itself an SVID of the trust domain (X509-SVID, section 3.2). It may sign
// leaves only. A validator that supports URI constraints accepts only leaves of the root's trust domain.
func newRoot(o Options) (*root, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		// A random name, because with several trusted roots a verifier finds the right one by name.
		Subject:   pkix.Name{Organization: []string{o.TrustDomain}, CommonName: "root " + rand.Text()[:8]},
		NotBefore: now.Add(-o.Backdate), NotAfter: now.Add(o.RootLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		URIs:                        []*url.URL{{Scheme: scheme, Host: o.TrustDomain}},
		PermittedURIDomains:         []string{o.TrustDomain},
		PermittedDNSDomainsCritical: true, // criticality of all constraints, despite its name
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing a root of %s: %w", o.TrustDomain, err)
	}
	return parseRoot(der, key)
}

func parseRoot(der []byte, key crypto.Signer) (*root, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of a root: %w", err)
	}
	return &root{c, key, pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der})}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

func keyPEM(key crypto.PrivateKey) (Key, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key of type %T failed", key) // without the cause, which might contain the key
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

// leaf is a signed certificate.
type leaf struct {
	pem                 []byte
	notBefore, notAfter time.Time
	due                 time.Time         // when to replace it
	by                  *x509.Certificate // the root that signed it
}

// sign signs a certificate for a key. The caller must have checked that the key's holder may have the identity. The
// certificate ends after the given life, or with the root if that is earlier.
func (a *Authority) sign(
	t *trust, id string, key crypto.PublicKey, life time.Duration, names ...string,
) (leaf, error) {
	u, err := url.Parse(id)
	if err != nil {
		return leaf{}, fmt.Errorf("the identity %s: %w", shown(id), err)
	}
	now := time.Now()
	end := now.Add(life)
	if last := t.issuing.certificate.NotAfter; end.After(last) {
		end = last
	}
	template := &x509.Certificate{
		// x509 chooses the serial number: 20 random octets. Without a subject, x509 marks the alternative names critical.
		NotBefore: now.Add(-a.o.Backdate).Truncate(time.Second), NotAfter: end.Truncate(time.Second),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{u}, DNSNames: names,
	}
	if !template.NotAfter.After(now) {
		return leaf{}, fault.New(fault.Machine, "", "roll over to a new root", "the root %s has ended", t.issuing.name())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, t.issuing.certificate, key, t.issuing.key)
	if err != nil {
		return leaf{}, fmt.Errorf("signing a certificate of %s: %w", id, err)
	}
	part := a.o.RenewAfter * (1 - jitter*mathrand.Float64())
	due := now.Add(time.Duration(float64(template.NotAfter.Sub(now)) * part))
	return leaf{
		pem:       pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}),
		notBefore: template.NotBefore, notAfter: template.NotAfter, due: due, by: t.issuing.certificate,
	}, nil
}

// store keeps roots in a file: the root that signs, with its key; then the next root, with its key, or the previous
// root, without its key. So the file itself shows the stage of a rollover, and each step is one rename.
type store struct {
	dir  *private
	lock *os.File
}

const storeFile = "authority.pem"

func openStore(path string) (*store, error) {
	dir, err := openPrivate(path)
	if err != nil {
		return nil, err
	}
	lock, err := dir.lock()
	if err == nil {
		err = dir.sweep(storeFile)
	}
	if err != nil {
		dir.close()
		return nil, err
	}
	return &store{dir, lock}, nil
}

func (s *store) close() {
	_ = s.lock.Close() // nothing was written to it
	s.dir.close()
}

func (s *store) write(t *trust) error {
	var text []byte
	for _, r := range t.roots {
		text = append(text, r.pem...)
		if r.key == nil {
			continue
		}
		key, err := keyPEM(r.key)
		if err != nil {
			return err
		}
		text = append(text, key...)
	}
	return s.dir.write(storeFile, text)
}

func (s *store) read(trustDomain string) (*trust, error) {
	text, err := s.dir.read(storeFile)
	if err != nil {
		return nil, err
	}
	t, err := parseTrust(text, trustDomain)
	return t, fault.Wrap(err, fault.Usage, s.dir.at(storeFile), "restore the file, or remove it for a new root",
		"the roots cannot be used")
}

// parseTrust parses the text of a store. Its errors never contain keys.
func parseTrust(text []byte, trustDomain string) (*trust, error) {
	var roots []*root
	for block := range blocks(text) {
		switch block.Type {
		case certificateBlock:
			r, err := parseRoot(block.Bytes, nil)
			if err != nil {
				return nil, err
			}
			if err := checkRoot(r.certificate, trustDomain); err != nil {
				return nil, err
			}
			roots = append(roots, r)
		case keyBlock:
			if len(roots) == 0 || roots[len(roots)-1].key != nil {
				return nil, errors.New("there is a key without its certificate")
			}
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			signer, ok := key.(*ecdsa.PrivateKey)
			last := roots[len(roots)-1]
			if err != nil || !ok || !signer.PublicKey.Equal(last.certificate.PublicKey) {
				return nil, fmt.Errorf("the key of the root %s does not belong to it, or is not an ECDSA key", last.name())
			}
			last.key = signer
		default:
			return nil, errors.New("it holds something other than certificates and keys")
		}
	}
	if len(roots) == 0 || len(roots) > 2 || roots[0].key == nil {
		return nil, errors.New("it must have a root with its key, and at most one more")
	}
	return newTrust(roots...), nil
}

func checkRoot(c *x509.Certificate, trustDomain string) error {
	if !c.IsCA || c.KeyUsage&x509.KeyUsageCertSign == 0 || len(c.SubjectKeyId) < 8 {
		return errors.New("it has a certificate that is not of an authority")
	}
	if len(c.URIs) != 1 || c.URIs[0].String() != scheme+"://"+trustDomain {
		return fmt.Errorf("it has a root that is not of trust domain %s", trustDomain)
	}
	return nil
}
