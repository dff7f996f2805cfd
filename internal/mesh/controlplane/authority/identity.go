package authority

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"

	"tare/internal/lib/fault"
)

// Defaults of the parts of an identity.
const (
	DefaultTrustDomain = "mesh.local"
	DefaultNamespace   = "default"
)

// SystemNamespace is the namespace of the control plane itself. Proxies get no identity in it.
const SystemNamespace = "tare-system"

// ControlPlane returns the identity of the control plane of a trust domain.
func ControlPlane(trustDomain string) string {
	return compose(trustDomain, SystemNamespace, "controlplane")
}

func compose(trustDomain, namespace, account string) string {
	return scheme + "://" + trustDomain + "/ns/" + namespace + "/sa/" + account
}

const (
	scheme     = "spiffe"
	maxDomain  = 255 // bytes; SPIFFE-ID, section 2.3
	maxSegment = 253 // bytes; the limit for names of service accounts in Kubernetes
)

// Identity returns the SPIFFE ID of a name in a mesh file: ACCOUNT or NAMESPACE/ACCOUNT. It also accepts a complete ID
// of the same trust domain.
func Identity(trustDomain, name string) (string, error) {
	id := name
	if !strings.HasPrefix(name, scheme+":") {
		namespace, account, both := strings.Cut(name, "/")
		if !both {
			namespace, account = DefaultNamespace, name
		}
		id = compose(trustDomain, namespace, account)
	}
	if err := CheckIdentity(trustDomain, id); err != nil {
		return "", err
	}
	return id, nil
}

// CheckIdentity returns an error unless id is spiffe://TRUST_DOMAIN/ns/NAMESPACE/sa/ACCOUNT of exactly that trust
// domain. Only the characters of SPIFFE's paths are allowed (SPIFFE-ID, section 2.2), so that an identity has one
// spelling.
func CheckIdentity(trustDomain, id string) error {
	const hint = "an identity is spiffe://TRUST_DOMAIN/ns/NAMESPACE/sa/ACCOUNT"
	rest, ok := strings.CutPrefix(id, scheme+"://")
	domain, path, _ := strings.Cut(rest, "/")
	if !ok || domain != trustDomain {
		return fault.New(fault.Usage, shown(id), hint, "not an identity of trust domain %s", trustDomain)
	}
	parts := strings.Split(path, "/")
	if len(parts) != 4 || parts[0] != "ns" || parts[2] != "sa" || !segment(parts[1]) || !segment(parts[3]) {
		return fault.New(fault.Usage, shown(id), hint, "not an identity")
	}
	return nil
}

// segment reports whether s can be a segment of an identity's path.
func segment(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > maxSegment {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	})
}

// system reports whether an identity is reserved for the control plane.
func system(trustDomain, id string) bool {
	return strings.HasPrefix(id, compose(trustDomain, SystemNamespace, ""))
}

// CheckTrustDomain returns an error unless domain can be a trust domain: labels of lower-case letters, digits, - and
// _, with dots between them, and not an IP address, which name constraints cannot express.
func CheckTrustDomain(domain string) error {
	err := fault.New(fault.Usage, shown(domain), "use a name such as mesh.local", "not a trust domain")
	if _, isIP := netip.ParseAddr(domain); isIP == nil || domain == "" || len(domain) > maxDomain {
		return err
	}
	for label := range strings.SplitSeq(domain, ".") {
		if label == "" || strings.ContainsFunc(label, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_')
		}) {
			return err
		}
	}
	return nil
}

// shown returns a peer's text for errors and logs: quoted and shortened.
func shown(s string) string {
	const most = 300
	if len(s) > most {
		return fmt.Sprintf("%.*q... (%d bytes)", most, s, len(s))
	}
	return fmt.Sprintf("%q", s)
}

// idOf returns the SPIFFE ID of a leaf certificate, by the rules for validators (X509-SVID, section 5.2). It does not
// verify who signed it.
func idOf(leaf *x509.Certificate) (string, error) {
	switch {
	case leaf.IsCA:
		return "", errors.New("the certificate is of an authority")
	case leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return "", errors.New("the certificate's key may sign certificates")
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return "", errors.New("the certificate's key may not sign")
	case len(leaf.URIs) != 1:
		return "", fmt.Errorf("the certificate has %d URIs, and must have one", len(leaf.URIs))
	}
	id := leaf.URIs[0].String()
	_, err := domainOf(id)
	return id, err
}

// domainOf returns the trust domain of a SPIFFE ID.
func domainOf(id string) (string, error) {
	rest, is := strings.CutPrefix(id, scheme+"://")
	if !is {
		return "", fmt.Errorf("%s is not a SPIFFE ID", shown(id))
	}
	domain, _, _ := strings.Cut(rest, "/")
	if err := CheckTrustDomain(domain); err != nil {
		return "", err
	}
	return domain, CheckIdentity(domain, id)
}

// parseChain parses certificates in PEM.
func parseChain(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block := range blocks(text) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading a certificate: %w", err)
		}
		all = append(all, c)
	}
	return all, nil
}

// blocks iterates over the PEM blocks of a text.
func blocks(text []byte) iter.Seq[*pem.Block] {
	return func(yield func(*pem.Block) bool) {
		block, rest := pem.Decode(text)
		for block != nil && yield(block) {
			block, rest = pem.Decode(rest)
		}
	}
}

// checkRoots returns an error unless all certificates are roots of a trust domain.
func checkRoots(text []byte, trustDomain string) error {
	roots, err := parseChain(text)
	for _, r := range roots {
		if err == nil {
			err = checkRoot(r, trustDomain)
		}
	}
	return err
}
