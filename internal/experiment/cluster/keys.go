package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
)

// coordinatorName is the name in the coordinator's certificate. Agents verify it instead of a host name, because the
// coordinator runs wherever 'tare run' is started.
const coordinatorName = "coordinator"

var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// CheckName checks the name of a node, which is used in certificates, file names and records.
func CheckName(name string) error {
	switch {
	case !nodeName.MatchString(name):
		return fault.New(fault.Usage, name, "use small letters, digits, - and ., at most 63", "not a name for a node")
	case name == coordinatorName || name == authorityName:
		return fault.New(fault.Usage, name, "use another", "the name %s is taken", name)
	}
	return nil
}

// Credentials holds the certificates and the key of one side, in PEM.
type Credentials struct {
	Authority   []byte `json:"authority"`   // certificate of the authority that both sides trust
	Certificate []byte `json:"certificate"` // this side's certificate
	Key         []byte `json:"key"`
}

// Authority issues the certificates of one cluster. All keys are ECDSA on P-256.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// New certificates are valid from clockSkew ago, so that nodes whose clocks are behind the authority's do not reject
// them as not yet valid.
const clockSkew = time.Hour

// NewAuthority makes an authority, which expires after life together with all certificates that it issues.
func NewAuthority(life time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	return newAuthority(key, life)
}

func newAuthority(key *ecdsa.PrivateKey, life time.Duration) (*Authority, error) {
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "tare " + authorityName}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true,
		MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &Authority{certificate: template, key: key}
	der, err := a.sign(template, key)
	if err != nil {
		return nil, err
	}
	a.certificate, err = x509.ParseCertificate(der)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, err
}

func (a *Authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return der, nil
}

// Node issues credentials for the agent with the given name.
func (a *Authority) Node(name string) (Credentials, error) {
	if err := CheckName(name); err != nil {
		return Credentials{}, err
	}
	return a.issue(name, x509.ExtKeyUsageClientAuth)
}

// Coordinator issues credentials for the coordinator.
func (a *Authority) Coordinator() (Credentials, error) {
	return a.issue(coordinatorName, x509.ExtKeyUsageServerAuth)
}

// issue makes a key with a certificate for one use, so a node cannot pose as the coordinator.
func (a *Authority) issue(name string, use x509.ExtKeyUsage) (Credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credentials{}, fmt.Errorf("making a key for %s: %w", name, err)
	}
	return a.issueFor(key, name, use)
}

func (a *Authority) issueFor(key *ecdsa.PrivateKey, name string, use x509.ExtKeyUsage) (Credentials, error) {
	der, err := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: a.certificate.NotBefore,
		NotAfter: a.certificate.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use}, BasicConstraintsValid: true,
	}, key)
	if err != nil {
		return Credentials{}, err
	}
	text, err := keyPEM(key)
	return Credentials{Authority: a.pem, Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key: text}, err
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// config returns the configuration that both sides share, with TLS 1.3 as the minimum, and a pool with the authority's
// certificate. It returns an error if a certificate has expired or is not yet valid.
func (c Credentials) config() (*tls.Config, *x509.CertPool, error) {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Usage, "", "'tare node keys' makes a pair",
			"the certificate and the key cannot be used")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.Authority) {
		return nil, nil, fault.New(fault.Usage, "", "'tare node keys' makes one", "the authority's certificate is invalid")
	}
	if _, err := c.Expires(time.Now()); err != nil {
		return nil, nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}, pool, nil
}

// warnBefore is the remaining life of a certificate below which Expires warns. For short-lived certificates it is half
// of their life, if that is less.
const warnBefore = 30 * 24 * time.Hour

// renewHint is the hint for certificates that expire.
const renewHint = "renew all certificates with 'tare node keys --dir DIR --renew' where the authority's key " +
	"is, and copy authority.pem and each node's own to the nodes; keys stay as they are"

// Expires returns a warning if, as of now, a certificate will soon expire. It returns an error with the code
// fault.Usage for a certificate that has expired or is not yet valid.
func (c Credentials) Expires(now time.Time) (warning string, err error) {
	for _, text := range [][]byte{c.Authority, c.Certificate} {
		block, _ := pem.Decode(text)
		if block == nil {
			continue // config reports it
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		name, day := certificate.Subject.CommonName, certificate.NotAfter.UTC().Format(time.DateOnly)
		switch left := certificate.NotAfter.Sub(now); {
		case left <= 0:
			return "", fault.New(fault.Usage, name, renewHint, "the certificate expired on %s", day)
		case now.Before(certificate.NotBefore):
			return "", fault.New(fault.Usage, name, "set this machine's clock, or renew the certificates where it is right",
				"the certificate is not valid before %s", certificate.NotBefore.UTC().Format(time.RFC3339))
		case left < min(warnBefore, certificate.NotAfter.Sub(certificate.NotBefore)/2) && warning == "":
			warning = fmt.Sprintf("the certificate of %s expires on %s, in %d days; %s", name, day, int(left.Hours()/24),
				renewHint)
		}
	}
	return warning, nil
}

// server returns the coordinator's configuration. Its handshake rejects a peer that shows no certificate.
func (c Credentials) server() (*tls.Config, error) {
	config, pool, err := c.config()
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAnyClientCert, pool // verified in VerifyConnection
	config.SessionTicketsDisabled = true                                 // each connection must show its certificate
	config.VerifyConnection = verifyPeer(pool, x509.ExtKeyUsageClientAuth, "")
	return config, nil
}

func (c Credentials) client() (*tls.Config, error) {
	config, pool, err := c.config()
	if err != nil {
		return nil, err
	}
	config.ServerName, config.InsecureSkipVerify = coordinatorName, true // verified in VerifyConnection
	config.VerifyConnection = verifyPeer(pool, x509.ExtKeyUsageServerAuth, coordinatorName)
	return config, nil
}

// verifyPeer returns a function that verifies the other side's certificate: the authority must have issued it, for this
// use and, unless name is empty, for this name. There are no intermediate authorities, and all keys are on P-256, so a
// peer that shows more than one certificate or another kind of key is refused first. Otherwise crypto/tls would try to
// build chains from what a stranger sends: up to 100 signatures by keys of the stranger's choice, before the stranger
// has proved that it has any key.
func verifyPeer(authority *x509.CertPool, use x509.ExtKeyUsage, name string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if n := len(s.PeerCertificates); n != 1 {
			return fmt.Errorf("tls: the peer shows %d certificates, not one", n)
		}
		peer := s.PeerCertificates[0]
		if key, ok := peer.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
			return errors.New("tls: the peer's key is not an ECDSA key on P-256")
		}
		options := x509.VerifyOptions{Roots: authority, DNSName: name, KeyUsages: []x509.ExtKeyUsage{use}}
		if _, err := peer.Verify(options); err != nil {
			return fmt.Errorf("tls: failed to verify certificate: %w", err)
		}
		return nil
	}
}

// The files of a directory of keys: NAME.pem and NAME.key for the authority, the coordinator and each node.
const (
	authorityName   = "authority"
	certificateFile = ".pem"
	keyFile         = ".key"
	keysLife        = 365 * 24 * time.Hour
)

// MakeKeys writes into dir the credentials of the given nodes and, unless they exist, of an authority and of the
// coordinator. It never overwrites: if a node has a certificate, that is an error with the code fault.Usage, and
// nothing is written. It returns the names of the files that it wrote.
//
// A key is written before its certificate, and each file completely or not at all, so a key and its certificate always
// match. If MakeKeys is interrupted between the two, the next call makes the missing certificate.
func MakeKeys(dir string, nodes []string) (wrote []string, err error) {
	for i, n := range nodes {
		if err := CheckName(n); err != nil {
			return nil, err
		}
		if slices.Contains(nodes[:i], n) {
			return nil, fault.New(fault.Usage, n, "name it once", "the node is named twice")
		}
		if _, err := os.Lstat(filepath.Join(dir, n+certificateFile)); err == nil {
			return nil, fault.New(fault.Usage, filepath.Join(dir, n+certificateFile),
				"remove it and its key for new ones, or --renew it", "the node has a certificate already")
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, cannotWriteKeys(err, dir)
	}
	k, err := openKeys(dir)
	if err != nil {
		return nil, err
	}
	err = errors.Join(k.make(nodes), k.root.Close())
	slices.Sort(k.wrote)
	return k.wrote, err
}

// RenewKeys makes new certificates for the existing keys in a directory that MakeKeys has filled: for the authority,
// the coordinator and all nodes. The new certificates are valid for a year, as after MakeKeys. It returns the names of
// the files that it wrote.
func RenewKeys(dir string) (wrote []string, err error) {
	k, err := openKeys(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(errors.Unwrap(err), fault.Usage, dir, "name the directory of 'tare node keys'",
			"there are no keys")
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.root.Close()) }()
	key, err := k.key(authorityName)
	if err != nil {
		return nil, err
	}
	if key == nil {
		return nil, fault.New(fault.Usage, filepath.Join(dir, authorityName+keyFile), authorityHint,
			"the authority's key cannot be read")
	}
	a, err := newAuthority(key, k.life)
	if err != nil {
		return nil, err
	}
	names, err := k.names()
	if err != nil {
		return nil, err
	}
	// The authority's certificate comes last. If RenewKeys is interrupted, old certificates stay valid, because the
	// authority's key is the same.
	for _, n := range names {
		if err := k.issue(a, n); err != nil {
			return k.wrote, err
		}
	}
	err = k.write(authorityName+certificateFile, a.pem)
	slices.Sort(k.wrote)
	return k.wrote, err
}

// authorityHint is the hint for an authority without its key.
const authorityHint = "run this where the authority's key is, or name another directory"

// keysDir is an open directory of keys.
type keysDir struct {
	path  string
	root  *os.Root
	life  time.Duration // validity of a new authority and of the certificates that it issues
	wrote []string
	stop  func() bool // for tests: if it returns true, a write fails
}

func openKeys(dir string) (*keysDir, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Wrap(err, fault.Machine, dir, "name a directory of your own, which you can read and write",
			"the directory of keys cannot be read")
	}
	info, err := root.Stat(".")
	if err == nil {
		err = files.CheckPrivate(info, files.OthersWrite)
	}
	if err != nil {
		root.Close()
		return nil, fault.Wrap(err, fault.Usage, dir, "name a directory of your own that nobody else can write (chmod go-w)",
			"keys cannot be kept here")
	}
	return &keysDir{path: dir, root: root, life: keysLife, stop: func() bool { return false }}, nil
}

// make makes the missing files of the authority, the coordinator and the given nodes.
func (k *keysDir) make(nodes []string) error {
	a, err := k.authority()
	if err != nil {
		return err
	}
	if _, err := k.root.Lstat(coordinatorName + certificateFile); errors.Is(err, fs.ErrNotExist) {
		if err := k.issue(a, coordinatorName); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := k.issue(a, n); err != nil {
			return err
		}
	}
	return nil
}

// names returns the names of the coordinator and the nodes that have a certificate and a key.
func (k *keysDir) names() (names []string, err error) {
	entries, err := fs.ReadDir(k.root.FS(), ".")
	if err != nil {
		return nil, cannotReadKeys(err, k.path)
	}
	for _, e := range entries {
		name, isKey := strings.CutSuffix(e.Name(), keyFile)
		if !isKey || name != coordinatorName && CheckName(name) != nil {
			continue
		}
		if _, err := k.root.Lstat(name + certificateFile); err == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// authority returns the authority in the directory. It makes one if there is none.
func (k *keysDir) authority() (*Authority, error) {
	_, err := k.root.Lstat(authorityName + certificateFile)
	if err == nil {
		return readAuthority(k.path)
	}
	key, err := k.keyOrNew(authorityName)
	if err != nil {
		return nil, err
	}
	a, err := newAuthority(key, k.life)
	if err != nil {
		return nil, err
	}
	return a, k.write(authorityName+certificateFile, a.pem)
}

// issue writes a certificate for the named key. It makes the key if there is none.
func (k *keysDir) issue(a *Authority, name string) error {
	key, err := k.keyOrNew(name)
	if err != nil {
		return err
	}
	use := x509.ExtKeyUsageClientAuth
	if name == coordinatorName {
		use = x509.ExtKeyUsageServerAuth
	}
	c, err := a.issueFor(key, name, use)
	if err != nil {
		return err
	}
	return k.write(name+certificateFile, c.Certificate)
}

// key reads the named key. It returns nil if there is none.
func (k *keysDir) key(name string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(k.path, name+keyFile)
	info, err := k.root.Lstat(name + keyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, cannotReadKeys(err, path)
	case !info.Mode().IsRegular():
		return nil, cannotReadKeys(errors.New("it is not a regular file"), path)
	}
	text, err := readCredential(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, cannotReadKeys(errors.New("there is no key in it"), path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, cannotReadKeys(errors.Join(err, errors.New("it is not a key that 'tare node keys' made")), path)
	}
	return key, nil
}

func (k *keysDir) keyOrNew(name string) (*ecdsa.PrivateKey, error) {
	key, err := k.key(name)
	if key != nil || err != nil {
		return key, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("making a key for %s: %w", name, err)
	}
	text, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return key, k.write(name+keyFile, text)
}

// write writes a file that only its owner can read, completely or not at all. It replaces a symbolic link instead of
// following it.
func (k *keysDir) write(name string, text []byte) error {
	if k.stop() {
		return errors.New("stopped")
	}
	if err := files.ReplaceIn(k.root, name, text, 0o600); err != nil {
		return cannotWriteKeys(err, filepath.Join(k.path, name))
	}
	k.wrote = append(k.wrote, name)
	return nil
}

func cannotWriteKeys(err error, path string) error {
	return fault.Wrap(err, fault.Machine, path, "name a directory that can be written", "keys cannot be written")
}

func cannotReadKeys(err error, path string) error {
	return fault.Wrap(err, fault.Usage, path, "'tare node keys' makes them", "credentials cannot be read")
}

func readAuthority(dir string) (*Authority, error) {
	files := filepath.Join(dir, authorityName)
	text, err := readCredential(files + certificateFile)
	if err != nil {
		return nil, err
	}
	keyText, err := readCredential(files + keyFile)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", authorityHint, "the authority's key cannot be read")
	}
	pair, err := tls.X509KeyPair(text, keyText)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, files+certificateFile, "name another directory for new ones",
			"the authority's certificate and key cannot be used")
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, fault.New(fault.Usage, files+certificateFile, "name another directory for new ones",
			"this is not an authority that 'tare node keys' made")
	}
	if _, err := (Credentials{Authority: text}).Expires(time.Now()); err != nil {
		return nil, err
	}
	return &Authority{certificate: pair.Leaf, key: key, pem: text}, nil
}

// maxCredential bounds a file with a key or a certificate, in bytes.
const maxCredential = 64 << 10

// readCredential reads a file with a key or a certificate.
func readCredential(path string) ([]byte, error) {
	text, err := files.Read(path, maxCredential)
	return text, cannotReadKeys(err, path)
}

// ReadCredentials reads the credentials of one side from files.
func ReadCredentials(authority, certificate, key string) (c Credentials, err error) {
	c.Authority, err = readCredential(authority)
	if err == nil {
		c.Certificate, err = readCredential(certificate)
	}
	if err == nil {
		c.Key, err = readCredential(key)
	}
	return c, err
}

// ReadCoordinator reads the coordinator's credentials from a directory that MakeKeys has filled.
func ReadCoordinator(dir string) (Credentials, error) {
	at := func(file string) string { return filepath.Join(dir, file) }
	return ReadCredentials(at(authorityName+certificateFile), at(coordinatorName+certificateFile),
		at(coordinatorName+keyFile))
}
