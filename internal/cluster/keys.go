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
	"time"

	"tare/internal/fault"
)

// coordinatorName is the name in the coordinator's certificate. Agents ask for it, and not for the host that they
// connect to: the coordinator runs wherever 'tare run' is typed.
const coordinatorName = "coordinator"

var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// CheckName checks the name of a node, which stands in certificates, in names of files and in records.
func CheckName(name string) error {
	switch {
	case !nodeName.MatchString(name):
		return fault.New(fault.Usage, name, "use small letters, digits, - and ., at most 63", "not a name for a node")
	case name == coordinatorName || name == authorityName:
		return fault.New(fault.Usage, name, "use another", "the name %s is taken", name)
	}
	return nil
}

// Credentials are what one side shows and trusts, as PEM.
type Credentials struct {
	Authority   []byte `json:"authority"`   // certificate of the authority that the other side's must be from
	Certificate []byte `json:"certificate"` // one's own
	Key         []byte `json:"key"`
}

// Authority issues the certificates of one cluster. ECDSA on P-256 throughout.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// clockSkew is how far behind a node's clock may be and still take a fresh certificate.
const clockSkew = time.Hour

// NewAuthority makes an authority. It and all that it issues end after life.
func NewAuthority(life time.Duration) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "tare " + authorityName}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(life), IsCA: true, BasicConstraintsValid: true,
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

// Node issues credentials for the agent of that name.
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

// issue makes a certificate for one use: a node's does not pass for the coordinator's.
func (a *Authority) issue(name string, use x509.ExtKeyUsage) (Credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credentials{}, fmt.Errorf("making a key for %s: %w", name, err)
	}
	der, err := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: a.certificate.NotBefore, NotAfter: a.certificate.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use}, BasicConstraintsValid: true,
	}, key)
	if err != nil {
		return Credentials{}, err
	}
	text, err := keyPEM(key)
	return Credentials{Authority: a.pem, Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: text}, err
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// config is what both sides have in common: TLS 1.3 and nothing below.
func (c Credentials) config() (*tls.Config, *x509.CertPool, error) {
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.Usage, "", "'tare node keys' makes a pair", "the certificate and the key cannot be used")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.Authority) {
		return nil, nil, fault.New(fault.Usage, "", "'tare node keys' makes one", "the authority's certificate is not one")
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}, pool, nil
}

// server is the coordinator's side: nobody without a certificate gets as far as the first message.
func (c Credentials) server() (*tls.Config, error) {
	config, pool, err := c.config()
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, pool
	return config, nil
}

func (c Credentials) client() (*tls.Config, error) {
	config, pool, err := c.config()
	if err != nil {
		return nil, err
	}
	config.RootCAs, config.ServerName = pool, coordinatorName
	return config, nil
}

// The files of a directory of keys: NAME.pem and NAME.key for the authority, the coordinator and each node.
const (
	authorityName   = "authority"
	certificateFile = ".pem"
	keyFile         = ".key"
	keysLife        = 365 * 24 * time.Hour
)

// MakeKeys writes into dir the credentials of an authority and of the coordinator, unless they are there, and those of
// the nodes. It never overwrites: a node that has a file is an error with code fault.Usage, and nothing is written. It
// gives the names of the files that it wrote.
func MakeKeys(dir string, nodes []string) (wrote []string, err error) {
	for i, n := range nodes {
		if err := CheckName(n); err != nil {
			return nil, err
		}
		if slices.Contains(nodes[:i], n) {
			return nil, fault.New(fault.Usage, n, "name it once", "the node is named twice")
		}
		if _, err := os.Lstat(filepath.Join(dir, n+certificateFile)); err == nil {
			return nil, fault.New(fault.Usage, filepath.Join(dir, n+certificateFile), "remove it and its key for new ones", "the node has a certificate already")
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, cannotWriteKeys(err, dir)
	}
	write := func(name string, c Credentials) error {
		for file, text := range map[string][]byte{name + certificateFile: c.Certificate, name + keyFile: c.Key} {
			if err := writeNew(filepath.Join(dir, file), text); err != nil {
				return err
			}
			wrote = append(wrote, file)
		}
		return nil
	}
	a, err := readAuthority(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if a, err = NewAuthority(keysLife); err != nil {
			return nil, err
		}
		var key []byte
		if key, err = keyPEM(a.key); err == nil {
			err = write(authorityName, Credentials{Certificate: a.pem, Key: key})
		}
		if err == nil {
			var c Credentials
			if c, err = a.Coordinator(); err == nil {
				err = write(coordinatorName, c)
			}
		}
	}
	for _, n := range nodes {
		if err != nil {
			break
		}
		var c Credentials
		if c, err = a.Node(n); err == nil {
			err = write(n, c)
		}
	}
	slices.Sort(wrote)
	return wrote, err
}

// writeNew writes a file that only its owner can read, and follows no link that somebody has put in its place.
func writeNew(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return cannotWriteKeys(err, path)
	}
	_, err = f.Write(text)
	return cannotWriteKeys(errors.Join(err, f.Close()), path)
}

func cannotWriteKeys(err error, path string) error {
	return fault.Wrap(err, fault.Machine, path, "name a directory that can be written", "keys cannot be written")
}

func readAuthority(dir string) (*Authority, error) {
	files := filepath.Join(dir, authorityName)
	text, err := os.ReadFile(files + certificateFile)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, files+certificateFile, "", "the authority's certificate cannot be read")
	}
	keyText, err := os.ReadFile(files + keyFile)
	if err != nil {
		return nil, fault.Wrap(errors.New(err.Error()), fault.Usage, files+keyFile, "run this where the authority's key is, or name another directory", "the authority's key cannot be read")
	}
	pair, err := tls.X509KeyPair(text, keyText)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, files+certificateFile, "name another directory for new ones", "the authority's certificate and key cannot be used")
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, fault.New(fault.Usage, files+certificateFile, "name another directory for new ones", "this is not an authority of 'tare node keys'")
	}
	return &Authority{certificate: pair.Leaf, key: key, pem: text}, nil
}

// ReadCredentials reads those of one side from files.
func ReadCredentials(authority, certificate, key string) (c Credentials, err error) {
	for file, into := range map[string]*[]byte{authority: &c.Authority, certificate: &c.Certificate, key: &c.Key} {
		if *into, err = os.ReadFile(file); err != nil {
			return c, fault.Wrap(err, fault.Usage, file, "'tare node keys' makes them", "credentials cannot be read")
		}
	}
	return c, nil
}

// ReadCoordinator reads the coordinator's credentials from a directory of MakeKeys.
func ReadCoordinator(dir string) (Credentials, error) {
	at := func(file string) string { return filepath.Join(dir, file) }
	return ReadCredentials(at(authorityName+certificateFile), at(coordinatorName+certificateFile), at(coordinatorName+keyFile))
}
