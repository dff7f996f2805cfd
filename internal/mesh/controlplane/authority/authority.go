// Package authority is the certificate authority of our control plane, and how proxies prove who they are.
//
// Certificates are SPIFFE's (X509-SVID): ECDSA on P-256, short-lived, with one URI and no other name. The root signs
// them directly. Proxies of Envoy's kind get key and certificate as secrets of SDS (Secrets, Roots). Agents that keep
// their key to themselves ask for a signature with the token of a service account, and later with the certificate that
// they have (Service, Agent). Proxies configured by files get theirs from Credentials.WriteFiles.
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

// Options are the settings of an authority. The zero value will do.
type Options struct {
	TrustDomain string        // default DefaultTrustDomain
	Life        time.Duration // of certificates, from a second on; default DefaultLife
	RootLife    time.Duration // of roots; default DefaultRootLife. What a root signed ends with it
	Backdate    time.Duration // how far a peer's clock may be behind; default DefaultBackdate, negative: not at all
	// RenewAfter is the part of its life after which a certificate is replaced, in (0, 1); default DefaultRenewAfter. A
	// random tenth of it is left out, so that certificates of the same time are not replaced at the same time.
	RenewAfter    float64
	MaxIdentities int // with secrets at a time; default DefaultMaxIdentities
	// MaxStrangers is how many connections of ServerCredentials may be open whose peers have shown no certificate; of more
	// the oldest is closed. Default DefaultMaxStrangers.
	MaxStrangers int

	// Names are the DNS names that certificates of an identity have beside it, for peers that can check names of hosts
	// and no URIs (nginx, HAProxy). nil: none. It is not for agents, whose certificates never have any.
	Names func(id string) []string
	// OwnNames are the DNS names of the control plane's own certificate, for peers that know it by a name (WebTLS).
	OwnNames []string

	// OnChange is called by Run after Secrets would give another secret for an identity, and OnRoots by the goroutine
	// that changed the roots, after Roots would give another.
	OnChange func(id string)
	OnRoots  func()
	// Log gets a line for each refusal, up to a rate for each host, and for each step of a rollover. Lines have no keys
	// and no tokens.
	Log func(line string)
}

// Where Options say nothing.
const (
	DefaultLife          = time.Hour
	DefaultRootLife      = 365 * 24 * time.Hour
	DefaultBackdate      = time.Minute
	DefaultRenewAfter    = 0.5
	DefaultMaxIdentities = 10_000
	DefaultMaxStrangers  = 256
)

// jitter is the part of RenewAfter that is left out at random, at most.
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
		return o, fault.New(fault.Usage, "", "from 1s on, and no longer than the root's",
			"certificates of %s below a root of %s", o.Life, o.RootLife)
	case o.RenewAfter < 0 || o.RenewAfter >= 1:
		return o, fault.New(fault.Usage, "", "above 0 and below 1", "certificates cannot be renewed after %g of their life",
			o.RenewAfter)
	case o.MaxIdentities < 0:
		return o, fault.New(fault.Usage, "", "above 0", "at most %d identities are too few", o.MaxIdentities)
	}
	return o, CheckTrustDomain(o.TrustDomain)
}

// Authority issues certificates of one trust domain. Its methods can be called from several goroutines.
type Authority struct {
	o     Options
	store *store // nil: in memory alone

	trust atomic.Pointer[trust]
	step  sync.Mutex // held by the steps of a rollover, one at a time

	mu      sync.Mutex
	issued  map[string]*entry
	changed map[string]bool // identities of which OnChange has yet to be told
	wake    chan struct{}   // Run looks at what is due again
	wakes   time.Time       // when it will, whatever comes
	signed  signed          // what agents have
	own     entry           // the control plane's certificate
	served  atomic.Pointer[serving]
	running atomic.Bool
	told    *limits // refusals that are logged, by host

	strangers *limit.Latest // connections whose peers have shown no certificate
}

// trust is what an authority trusts and signs with. It is never changed, only replaced.
type trust struct {
	issuing *root   // has a key
	roots   []*root // all that are trusted, the issuing one first
	pem     []byte
	pool    *x509.CertPool
	secret  *tlsv3.Secret
}

// root is a root certificate. The key of a root that signs no more is gone.
type root struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         []byte
}

func (r *root) name() string { return hex.EncodeToString(r.certificate.SubjectKeyId[:8]) }

// New makes an authority with a root of its own. Keys are nowhere but in this process.
func New(o Options) (*Authority, error) { return open(o, nil) }

// Open is an authority whose roots are kept in a directory, in a file of mode 0600: those that are there, or else a new
// one. The directory must belong to this user or root, and nobody else may write it. One process at a time can use it;
// Close lets it go.
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
		told: newLimits(toldRate, toldBurst), strangers: limit.NewLatest(o.MaxStrangers),
	}
	a.own.id = ControlPlane(o.TrustDomain)
	t, err := a.load()
	if err != nil {
		return nil, err
	}
	a.trust.Store(t)
	return a, nil
}

// load is the trust of the store, or that of a new root.
func (a *Authority) load() (*trust, error) {
	if a.store != nil {
		t, err := a.store.read(a.o.TrustDomain)
		if !errors.Is(err, fs.ErrNotExist) {
			last := time.Now().Add(a.o.Life) // agents may have certificates until then: nobody has kept count
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

// Close lets the directory of the roots go. It does not end Run.
func (a *Authority) Close() {
	if a.store != nil {
		a.store.close()
	}
}

// TrustDomain is the authority's.
func (a *Authority) TrustDomain() string { return a.o.TrustDomain }

// RootsPEM are the certificates of all trusted roots. Their order says nothing.
func (a *Authority) RootsPEM() []byte { return a.trust.Load().pem }

func (a *Authority) logf(format string, args ...any) {
	if a.o.Log != nil {
		a.o.Log(fmt.Sprintf(format, args...))
	}
}

// How many refusals of one host are logged, per second and at once.
const (
	toldRate  = 1
	toldBurst = 50
)

// refuse logs that a peer did not get something.
func (a *Authority) refuse(ctx context.Context, format string, args ...any) {
	if host, address := addressOf(ctx); a.told.take(host) {
		a.logf("%s: refused "+format, append([]any{address}, args...)...)
	}
}

// newTrust is by one root, or by two: the one that signs, and one that will sign and has its key, or did and has none.
func newTrust(roots ...*root) *trust {
	t := &trust{issuing: roots[0], roots: roots, pool: x509.NewCertPool()}
	byName := slices.SortedFunc(slices.Values(roots), func(a, b *root) int { return strings.Compare(a.name(), b.name()) })
	for _, r := range byName { // so that which of them signs changes nothing for proxies
		t.pem = append(t.pem, r.pem...)
		t.pool.AddCert(r.certificate)
	}
	t.secret = rootsSecret(t.pem)
	return t
}

// newRoot makes a self-signed root that is itself an SVID of the trust domain (X509-SVID, section 3.2), may sign leaves
// only, and those of its trust domain only where a validator knows constraints of URIs.
func newRoot(o Options) (*root, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		// A random name: chains are found by it where several roots are trusted.
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
		return nil, fmt.Errorf("encoding a key of type %T failed", key) // without a cause that might show it
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

// leaf is a certificate as it was signed.
type leaf struct {
	pem                 []byte
	notBefore, notAfter time.Time
	due                 time.Time         // when it should be replaced
	by                  *x509.Certificate // the root that signed it
}

// sign makes a certificate for a key. Whether its holder may have that identity was decided before.
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
		// The serial number is x509's: 20 random octets. Without a subject, x509 marks the alternative names critical.
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

// store keeps roots in a file: that which signs, with its key; then that which will sign, with its key, or that which
// signed, without. So the file tells the stage of a rollover by itself, and one rename is one step.
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

// parseTrust reads the text of a store. Its errors show nothing of keys.
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
				return nil, fmt.Errorf("the key of the root %s is not its own, or not one of ECDSA", last.name())
			}
			last.key = signer
		default:
			return nil, errors.New("there is something else than certificates and keys")
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
