package authority

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// ServiceAccounts verifies the tokens of a Kubernetes cluster's service accounts. A pod proves its account with a JWT
// that the API server has signed and the kubelet has put into the pod (projected volumes, TokenRequest). Tokens are
// verified here, with the cluster's public keys, so the token of a deleted pod is accepted until it expires.
type ServiceAccounts struct {
	issuer, audience string
	keys             jose.JSONWebKeySet
}

// maxAccountToken is the maximum length of a token in bytes.
const maxAccountToken = 8 << 10

// signatures are the algorithms that API servers sign with (kube-apiserver, --service-account-signing-key-file).
var signatures = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// NewServiceAccounts returns a verifier with the public keys of a cluster, as its API server publishes them
// (/openid/v1/jwks). It accepts only tokens of the issuer for the audience.
func NewServiceAccounts(jwks []byte, issuer, audience string) (*ServiceAccounts, error) {
	s := &ServiceAccounts{issuer: issuer, audience: audience}
	if err := json.Unmarshal(jwks, &s.keys); err != nil {
		return nil, fmt.Errorf("reading a set of keys: %w", err)
	}
	if issuer == "" || audience == "" {
		return nil, errors.New("an issuer and an audience are required: without them any token signed by these keys " +
			"would be accepted")
	}
	if len(s.keys.Keys) == 0 {
		return nil, errors.New("there is no key")
	}
	for _, k := range s.keys.Keys {
		if !k.Valid() || !k.IsPublic() || k.KeyID == "" {
			return nil, fmt.Errorf("the key %.100q is not public, or has no name", k.KeyID)
		}
	}
	return s, nil
}

// accountClaims are the claims of Kubernetes' tokens (k8s.io/kubernetes/pkg/serviceaccount).
type accountClaims struct {
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
		Pod struct {
			UID string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// identity returns a token's identity and the UID of its pod, which is empty if the token names none. The error does
// not say why a token is invalid, because the peer may be an attacker. If s is nil, no token is valid.
func (s *ServiceAccounts) identity(trustDomain string, token Token) (id, pod string, err error) {
	if s == nil || len(token) > maxAccountToken {
		return "", "", errToken
	}
	t, err := jwt.ParseSigned(string(token), signatures)
	if err != nil || len(t.Headers) != 1 {
		return "", "", errToken
	}
	var standard jwt.Claims
	var own accountClaims
	if t.Claims(s.keys, &standard, &own) != nil {
		return "", "", errToken
	}
	expected := jwt.Expected{Issuer: s.issuer, AnyAudience: jwt.Audience{s.audience}, Time: time.Now()}
	if standard.Expiry == nil || standard.ValidateWithLeeway(expected, 0) != nil {
		return "", "", errToken
	}
	k := own.Kubernetes
	if standard.Subject != "system:serviceaccount:"+k.Namespace+":"+k.ServiceAccount.Name {
		return "", "", errToken
	}
	id = compose(trustDomain, k.Namespace, k.ServiceAccount.Name)
	if CheckIdentity(trustDomain, id) != nil || len(k.Pod.UID) > 64 {
		return "", "", errToken
	}
	return id, k.Pod.UID, nil
}
