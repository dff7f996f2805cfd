package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs certificates and keeps them, with their keys, as NAME.pem and NAME.key in a directory.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// issue makes a certificate from a template, signed by the authority, or self-signed if the authority has no
// certificate yet. It returns the certificate and the key as PEM.
func (a *authority) issue(name string, t x509.Certificate) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	t.NotBefore, t.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(0, 0, 2)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = &t, k
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, parent, &k.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder})
	if a.cert == nil {
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return nil, nil, err
		}
		a.key, a.pem = k, cert
	}
	if err := os.WriteFile(filepath.Join(a.dir, name+".pem"), cert, 0o600); err != nil {
		return nil, nil, err
	}
	return cert, key, os.WriteFile(filepath.Join(a.dir, name+".key"), key, 0o600)
}

// leaf issues a certificate for a user, a group and addresses.
func (a *authority) leaf(name, user, group string, ips []string, dns ...string) (cert, key []byte, err error) {
	t := x509.Certificate{
		Subject: pkix.Name{CommonName: user}, DNSNames: dns, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if group != "" {
		t.Subject.Organization = []string{group}
	}
	for _, ip := range ips {
		t.IPAddresses = append(t.IPAddresses, net.ParseIP(ip))
	}
	return a.issue(name, t)
}

// kubeconfig issues a client's certificate and writes NAME.kubeconfig with it.
func (a *authority) kubeconfig(name, server, user, group string) (string, error) {
	cert, key, err := a.leaf(name, user, group, nil)
	if err != nil {
		return "", err
	}
	b := base64.StdEncoding.EncodeToString
	path := filepath.Join(a.dir, name+".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: k, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: u, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
current-context: c
`, server, b(a.pem), b(cert), b(key)), 0o600)
}

// certificates makes what a cluster needs in dir: an authority, the certificates of every component, and kubeconfigs.
// It returns the path of the kubeconfig for an administrator outside the cluster. outside is the address, host:port, at
// which this administrator reaches the API server; nodes holds the addresses of the nodes by name.
func certificates(dir, outside string, nodes map[string]string) (string, error) {
	const server = "10.100.0.1:6443"
	a := &authority{dir: dir}
	const administrators = "system:masters"
	_, _, err := a.issue("ca", x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	if err != nil {
		return "", err
	}
	for _, l := range []struct {
		name, user, group string
		ips, dns          []string
	}{
		{name: "sa", user: "sa"},
		{name: "etcd", user: "etcd", ips: []string{"127.0.0.1"}},
		{
			name: "apiserver", user: "kube-apiserver", ips: []string{"127.0.0.1", "10.100.0.1", "10.96.0.1"},
			dns: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		},
		{name: "apiserver-kubelet", user: "kube-apiserver-kubelet-client", group: administrators},
		{name: "front-proxy", user: "front-proxy-client"},
	} {
		if _, _, err := a.leaf(l.name, l.user, l.group, l.ips, l.dns...); err != nil {
			return "", err
		}
	}
	for _, c := range [][3]string{
		{"admin", "admin", administrators}, {"kwok", "kwok", administrators},
		{"kube-controller-manager", "system:kube-controller-manager"},
		{"kube-scheduler", "system:kube-scheduler"}, {"kube-proxy", "system:kube-proxy"},
	} {
		if _, err := a.kubeconfig(c[0], server, c[1], c[2]); err != nil {
			return "", err
		}
	}
	for name, address := range nodes {
		user := "system:node:" + name
		if _, err := a.kubeconfig("kubelet-"+name, server, user, "system:nodes"); err != nil {
			return "", err
		}
		if _, _, err := a.leaf("kubelet-"+name+"-server", user, "system:nodes", []string{address}, name); err != nil {
			return "", err
		}
	}
	return a.kubeconfig("outside", outside, "admin", administrators)
}
