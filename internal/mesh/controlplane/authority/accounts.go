package authority

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// ServiceAccounts are those of a Kubernetes cluster. A pod proves which one it has by a token that the kubelet gives
// it: a JWT that the API server has signed (projected volumes, TokenRequest). It is checked here by the cluster's
// public keys, so that a token of a pod that has been deleted is taken until it ends.
type ServiceAccounts struct {
	issuer, audience string
	keys             jose.JSONWebKeySet
}

// maxAccountToken bounds a token, in bytes.
const maxAccountToken = 8 << 10

// signatures are those that API servers make (kube-apiserver, --service-account-signing-key-file).
var signatures = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// NewServiceAccounts takes the public keys of a cluster, as its API server shows them (/openid/v1/jwks). Tokens must be
// of the issuer and for the audience.
func NewServiceAccounts(jwks []byte, issuer, audience string) (*ServiceAccounts, error) {
	s := &ServiceAccounts{issuer: issuer, audience: audience}
	if err := json.Unmarshal(jwks, &s.keys); err != nil {
		return nil, fmt.Errorf("reading a set of keys: %w", err)
	}
	if issuer == "" || audience == "" {
		return nil, errors.New("an issuer and an audience are needed, or any token of the keys would do")
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

// identity is whose a token is, and which pod has it; empty: none alone. The error says nothing of why: whoever asks
// may not be the one to know. Where there are no accounts (nil), no token is anybody's.
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
